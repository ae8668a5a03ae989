"""Streams, consumers and buckets are created once, corrected if they differ, and reported if they are missing."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import Registrar, write_secret
from sandherd.bus.provision import ProvisionError, check, provision
from sandherd.bus.stream_configs import bucket_config, consumer_config, stream_config
from sandherd.contracts.streams import BUCKETS, BY_CONSUMER, BY_STREAM, CONSUMERS, STREAMS
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

P = Principal


@pytest.fixture
async def admin(herd: Broker) -> AsyncIterator[Bus]:
    path = herd.home / "creds" / "admin.creds"
    write_secret(path, Registrar(herd.identity).mint_stream_admin())
    inbox = "_INBOX_provisioner"
    async with Bus.open(
        herd.url, name="admin", identity=ConnectionIdentity.file(path), inbox=inbox, connect_timeout=PATIENCE
    ) as bus:
        yield bus


async def configurations(bus: Bus) -> dict[str, object]:
    streams = {str(info.config.name): info.config for info in await bus.js.streams_info()}
    consumers = {c.name: (await bus.js.consumer_info(c.stream, c.name)).config for c in CONSUMERS}
    return {**streams, **consumers}


async def test_exactly_the_declared_streams_exist(admin: Bus) -> None:
    """The broker has exactly the streams of the tables, including those of the buckets."""
    names = {info.config.name for info in await admin.js.streams_info()}
    assert names == {stream.name for stream in STREAMS} | {bucket.stream for bucket in BUCKETS}


async def test_second_provisioning_changes_and_loses_nothing(admin: Bus, herd: Broker) -> None:
    """Further provisioning changes no configuration, and loses no stored message."""
    async with herd.bus(P.MONITOR) as monitor:
        await monitor.publish("sandherd.v1.event.p1.fleet.monitor.conductor_reported", b"{}", msg_id="1")
    before = await configurations(admin)
    await provision(admin.js)
    await provision(admin.js)
    assert await configurations(admin) == before
    assert (await admin.js.stream_info("EVENTS")).state.messages == 1


@pytest.mark.parametrize("service", SERVICES)
async def test_service_check_with_its_own_credential_reports_no_problem(herd: Broker, service: Principal) -> None:
    """The check uses only what the service may see, and finds no problem in what was provisioned."""
    async with herd.bus(service) as bus:
        assert await check(bus.js, service) == []
        assert bus.violations == 0


async def test_what_is_missing_is_named(admin: Bus, herd: Broker) -> None:
    """A deleted consumer and a deleted stream are named, with the remedy."""
    await admin.js.delete_consumer("COMMANDS", "spawner-commands")
    await admin.js.delete_stream("KV_tasks")
    async with herd.bus(P.SPAWNER) as bus:
        faults = [str(fault) for fault in await check(bus.js, P.SPAWNER)]
    assert faults == [
        "stream KV_tasks: missing; run `sandherd provision`, or `sandherd up`",
        "consumer spawner-commands on COMMANDS: missing; restart the spawner, which creates it, or run `sandherd up`",
    ]


async def test_different_stream_is_reported_and_corrected(admin: Bus, herd: Broker) -> None:
    """A stream and a consumer that were rewritten, as FastStream's declaring does, are found and restored."""
    events = stream_config(replace(BY_STREAM["EVENTS"], max_age=3600, max_bytes=1024 * 1024))
    await admin.js.update_stream(events)
    ingest = replace(BY_CONSUMER["event-ingest"], max_ack_pending=5, filters=("sandherd.v1.event.p1.>",))
    await admin.js.add_consumer("EVENTS", consumer_config(ingest))
    async with herd.bus(P.EVENT_INGEST) as bus:
        found = "\n".join(str(fault) for fault in await check(bus.js, P.EVENT_INGEST))
        for name in ("max_age", "max_bytes", "max_ack_pending", "filter_subjects"):
            assert name in found
        await provision(admin.js)
        assert await check(bus.js, P.EVENT_INGEST) == []


async def test_stream_of_the_version_before_gets_message_ttls(admin: Bus, herd: Broker) -> None:
    """After the upgrade ARTIFACTS of an older set-up supports TTLs of chunks, and retains its messages."""
    await admin.js.delete_stream("ARTIFACTS")
    await admin.js.add_stream(stream_config(BY_STREAM["ARTIFACTS"]).evolve(allow_msg_ttl=None))
    async with herd.bus(P.SPAWNER) as bus:
        await bus.publish("sandherd.v1.artifact.p1.sbx-1.art-1", b"kept", msg_id="art-1-0")
        assert [fault.thing for fault in await check(bus.js, P.SPAWNER)] == ["stream ARTIFACTS"]
        await provision(admin.js)
        assert await check(bus.js, P.SPAWNER) == []
        subject = "sandherd.v1.artifact.p1.sbx-1.upl-1"
        await bus.publish(subject, b"an hour", msg_id="upl-1-0", headers={"Nats-TTL": "3600s"})
        stored = [(await bus.js.get_msg("ARTIFACTS", seq=seq, direct=True)).data for seq in (1, 2)]
        assert stored == [b"kept", b"an hour"]


async def test_unchangeable_stream_is_an_error(admin: Bus) -> None:
    """The error for a stream whose retention can't be changed names it, and never suggests its deletion."""
    await admin.js.delete_stream("COMMANDS")
    await admin.js.add_stream(stream_config(BY_STREAM["COMMANDS"]).evolve(retention="limits"))
    with pytest.raises(ProvisionError, match=r"stream COMMANDS: .* install that version again") as caught:
        await provision(admin.js)
    assert "delete" not in str(caught.value)


async def test_lost_stream_is_recreated_with_its_consumers(admin: Bus, herd: Broker) -> None:
    """Provisioning creates a whole set-up again from nothing."""
    for name in [info.config.name for info in await admin.js.streams_info()]:
        await admin.js.delete_stream(name or "")
    await provision(admin.js)
    for service in SERVICES:
        async with herd.bus(service) as bus:
            assert await check(bus.js, service) == []


async def test_leases_of_the_version_before_lose_rollups(admin: Bus, herd: Broker) -> None:
    """The shared bucket of an older set-up, with markers and rollups, is changed and retains its leases."""
    leases = next(bucket for bucket in BUCKETS if bucket.name == "leases")
    await admin.js.delete_stream("KV_leases")
    older = bucket_config(leases).evolve(allow_rollup_hdrs=True, subject_delete_marker_ttl=60.0)
    await admin.js.add_stream(older)
    async with herd.bus(P.SPAWNER) as bus:
        await bus.publish("$KV.leases.spawner.test", b"first", msg_id="lease")
        assert "allow_rollup_hdrs" in "".join(str(fault) for fault in await check(bus.js, P.SPAWNER))
        await provision(admin.js)
        assert await check(bus.js, P.SPAWNER) == []
        assert (await bus.js.get_last_msg("KV_leases", "$KV.leases.spawner.test")).data == b"first"
