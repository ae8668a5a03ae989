"""The use and the lifetime of a provisioner's credential: creation, detection of forgeries, changes, expiry."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.aio.msg import Msg

from sandherd.bus.api_subjects import API, API_FROM_OUTSIDE
from sandherd.bus.auth.setup_permissions import for_stream_changes
from sandherd.bus.connection import BusError
from sandherd.bus.identity import Key, KeyKind, Registrar, bearer, claims, credentials_text
from sandherd.bus.identity.keys import sign_claims
from sandherd.bus.provision import ProvisionError, check, create_missing, provision
from sandherd.bus.stream_configs import consumer_config, stream_config
from sandherd.bus.table_consumers import create_consumers
from sandherd.contracts.streams import BY_CONSUMER, BY_STREAM, CONSUMERS
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.bus.provisioner import NAMES, STOLEN, attacker, bus_with, configured
from tests.integration.bus.test_permissions_forwarding import seed
from tests.patience import PATIENCE

P = Principal


async def test_missing_streams_are_created_and_existing_ones_unchanged(herd: Broker) -> None:
    """A missing stream is created; a different one is named with the remedy, and stays as it is."""
    async with herd.provisioner() as js, attacker(herd) as publisher:
        for name in NAMES:
            await js.delete_stream(name)
        states = {done.thing: str(done.did) for done in await create_missing(publisher.bus.js)}
        assert {states[f"stream {name}"] for name in NAMES} == {"made"}
        assert {states[f"consumer {row.name} on {row.stream}"] for row in CONSUMERS} == {"pending"}
        async with herd.bus(P.SPAWNER) as spawner:
            await create_consumers(spawner)
            await create_consumers(spawner)
            assert spawner.violations == 0
        assert {str(done.did) for done in await create_missing(publisher.bus.js)} == {"kept"}
        await js.update_stream(stream_config(BY_STREAM["DEAD"]).evolve(max_bytes=4096))
        await js.delete_stream("PROBE")
        with pytest.raises(ProvisionError, match=r"stream DEAD \(max_bytes\): .* `sandherd provision --identity DIR`"):
            await create_missing(publisher.bus.js)
        assert (await js.stream_info("PROBE")).config.name == "PROBE"
        assert (await js.stream_info("DEAD")).config.max_bytes == 4096
        assert publisher.violations == []
    for service in (P.EVENT_INGEST, P.MESSAGE_RELAY):
        async with herd.bus(service) as bus:
            assert [fault.thing for fault in await check(bus.js, service)] == ["stream DEAD"]


async def test_existing_consumer_is_not_changed_by_a_spawner(herd: Broker) -> None:
    """A spawner of another version leaves the configuration and the position of a consumer."""
    other = consumer_config(BY_CONSUMER["event-ingest"]).evolve(max_ack_pending=7)
    async with herd.provisioner() as js, herd.bus(P.SPAWNER) as spawner:
        await js.add_consumer("EVENTS", other)
        await create_consumers(spawner)
        assert (await js.consumer_info("EVENTS", "event-ingest")).config.max_ack_pending == 7


async def test_stream_created_with_other_content_is_detected(herd: Broker) -> None:
    """A missing stream that an attacker creates, as a mirror or with a republish, receives nothing and is detected."""
    await seed(herd)
    received: list[bytes] = []

    async def receive(message: Msg) -> None:
        received.append(message.data)

    async with herd.provisioner() as js, attacker(herd) as publisher:
        await publisher.bus.client.subscribe(f"{STOLEN}.>", cb=receive)
        forged: dict[str, dict[str, Any]] = {
            "DEAD": {"republish": {"src": ">", "dest": f"{STOLEN}.>"}},
            "PROBE": {"mirror": {"name": "KV_tasks"}, "subjects": None},
            "INBOX": {"sources": [{"name": "KV_tasks"}, {"name": "EVENTS"}], "max_bytes": 1_000_000},
        }
        for name, changed in forged.items():
            await js.delete_stream(name)
            request = json.dumps(configured(name, **changed)).encode()
            created = json.loads(await publisher.bus.request(f"{API_FROM_OUTSIDE}.STREAM.CREATE.{name}", request))
            assert "error" not in created, created
        async with herd.bus(P.MESSAGE_RELAY) as relay:
            await relay.publish("sandherd.v1.dead.message-relay.internal", b"SEEDED", msg_id="after")
        await publisher.bus.flush()
        with pytest.raises(ProvisionError) as caught:
            await create_missing(publisher.bus.js)
        for part in ("stream DEAD (republish)", "stream PROBE (", "mirror", "stream INBOX (", "sources"):
            assert part in str(caught.value)
    assert received == []


async def test_stream_changing_credential_expires_within_an_hour(herd: Broker) -> None:
    """The credential may change a declared stream and delete none; a longer lifetime is not minted."""
    registrar = Registrar(herd.identity)
    for credentials in (registrar.mint_provisioner(1e9), registrar.mint_stream_changer(1e9)):
        expires = bearer(credentials).expires_at
        assert expires is not None
        assert 3500 < (expires - datetime.now(UTC)).total_seconds() <= 3600
    assert not any(".DELETE." in subject or ".PURGE." in subject for subject in for_stream_changes().publish)
    async with herd.provisioner() as js:
        await js.update_stream(stream_config(BY_STREAM["DEAD"]).evolve(max_bytes=4096))
    async with bus_with(herd, registrar.mint_stream_changer(), API) as bus:
        states = {done.thing: str(done.did) for done in await provision(bus.js)}
        assert [thing for thing, state in states.items() if state != "kept"] == ["stream DEAD"]
        await bus.client.publish(f"{API}.STREAM.DELETE.DEAD", b"")
        await bus.flush()
        assert bus.violations == 1


async def connects(herd: Broker, credentials: str, api: str) -> bool:
    try:
        async with bus_with(herd, credentials, api, connect_timeout=0):
            return True
    except BusError:
        return False


async def test_expired_credential_is_disconnected_and_refused(herd: Broker) -> None:
    """The server ends the connection when the credential expires, and accepts no other with it."""
    registrar = Registrar(herd.identity)
    for mint, api in ((registrar.mint_provisioner, API_FROM_OUTSIDE), (registrar.mint_stream_changer, API)):
        credentials = mint(5)  # seconds, in which it has to be used once
        async with bus_with(herd, credentials, api) as bus, asyncio.timeout(PATIENCE):
            await bus.js.stream_info("EVENTS")
            while not bus.closed:
                await asyncio.sleep(0.02)
        async with asyncio.timeout(PATIENCE):  # it expires at a whole second
            while await connects(herd, credentials, api):
                await asyncio.sleep(0.02)


async def test_earlier_credential_without_expiry_is_refused(herd: Broker) -> None:
    """No copy of the credential connects: the account of the streams no longer lists its signing key."""
    key = Key.new(KeyKind.USER)
    body = claims.user(
        key.public,
        name="provisioner",
        account=herd.identity.root_key("herd").public,
        principal=P.OPERATOR,
        permissions=for_stream_changes(),
    )
    for signing, accepted in (
        (herd.identity.root_key("streams-signing"), True),
        (herd.identity.root_key("services"), False),
        (Key.new(KeyKind.ACCOUNT), False),
    ):
        credentials = credentials_text(sign_claims(body, signing, 1), key.seed)
        assert await connects(herd, credentials, API) is accepted
