"""A worker's credential from minting to its end: renewed, expired, revoked, and never widened."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from nats.aio.msg import Msg

from sandherd.bus.auth.permissions import WORKER_PAYLOAD, Permissions
from sandherd.bus.connection import (
    Bus,
    BusError,
    ConnectionCallbacks,
    ConnectionIdentity,
    NoResponderError,
    PublishFailedError,
)
from sandherd.bus.identity import Key, KeyKind, Minter, SpawnerKeys, bearer, claims
from sandherd.bus.identity.keys import sign_claims
from sandherd.bus.identity.material import revocations
from sandherd.bus.identity.revocation import RevocationList, Revoker
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.subjects import BY_NAME, TABLE, Principal, Subject
from sandherd.stack.broker import Broker
from sandherd.stack.cluster import newest_token
from tests.patience import PATIENCE
from tests.polling import eventually

P = Principal
FETCH = BY_NAME["request.spawner.fetch"]
EVENT = "sandherd.v1.event.p1.sbx-1.agent.message"
DELIVER = "sandherd.v1.deliver.p1.sbx-1"


def is_back(bus: Bus, times: int) -> bool:
    return bus.reconnects >= times and bus.connected


def worker(
    herd: Broker, token: Callable[[], str], seed: str, patience: float = PATIENCE
) -> AbstractAsyncContextManager[Bus]:
    identity = ConnectionIdentity.renewing(token, seed)
    return Bus.open(herd.url, name="sbx-1", identity=identity, inbox="_INBOX_sbx-1", connect_timeout=patience)


async def refused(herd: Broker, token: str, seed: str) -> None:
    """Check that the broker refuses connections with it."""
    with pytest.raises(BusError):
        async with worker(herd, lambda: token, seed, patience=0):
            pass


async def test_expired_token_ends_the_connection_and_opens_none(herd: Broker) -> None:
    """The broker disconnects a worker whose token expires, and refuses it when it reconnects."""
    key = Key.new(KeyKind.USER)
    token, expires = herd.minter().mint_worker("p1", "sbx-1", key.public, life=8)
    async with worker(herd, lambda: token, key.seed) as bus:
        assert bus.connected
        await eventually(lambda: not bus.connected)
        assert datetime.now(UTC) >= expires
    # The broker accepts a token until its last second is over, and then disconnects it.
    await eventually(lambda: datetime.now(UTC) > expires + timedelta(seconds=1))
    await refused(herd, token, key.seed)


async def test_renewal_during_publishing_loses_nothing(herd: Broker) -> None:
    """Events that are published while the connection changes its token four times are all stored once."""
    key, minter = Key.new(KeyKind.USER), herd.minter()
    tokens = [minter.mint_worker("p1", "sbx-1", key.public, life=60)[0]]
    async with herd.bus(P.EVENT_INGEST) as reader, worker(herd, lambda: tokens[-1], key.seed) as bus:

        async def talk() -> int:
            published = 0
            while bus.reconnects < 4 or published < 200:
                try:
                    await bus.publish(EVENT, b"{}", msg_id=f"m-{published}", timeout=0.3)
                except PublishFailedError:
                    continue  # its acknowledgement was lost on the way: publish it again with the same id
                published += 1
            return published

        talking = asyncio.create_task(talk())
        for round_ in range(1, 5):
            tokens.append(minter.mint_worker("p1", "sbx-1", key.public, life=60)[0])
            await bus.client.force_reconnect()
            await eventually(partial(is_back, bus, round_))
        published = await talking
        state = (await reader.js.stream_info("EVENTS")).state
        assert state.messages == published


async def test_revoked_worker_is_disconnected_and_neighbour_stays(herd: Broker) -> None:
    """A revocation disconnects at once, refuses the key even with a new token, and affects no other worker."""
    key, minter, now = Key.new(KeyKind.USER), herd.minter(), datetime.now(UTC)
    token, expires = minter.mint_worker("p1", "sbx-1", key.public, life=3600)
    async with AsyncExitStack() as stack:
        spawner = await stack.enter_async_context(herd.bus(P.SPAWNER))
        keys = SpawnerKeys.read(herd.spawner_identity)
        revoker = await stack.enter_async_context(Revoker.open(herd.url, keys, spawner.js))
        neighbour = await stack.enter_async_context(herd.bus(P.WORKER, project="p1", sandbox="sbx-2"))
        bus = await stack.enter_async_context(worker(herd, lambda: token, key.seed))
        await revoker.revoke({key.public: expires}, now)
        await eventually(lambda: not bus.connected)
        assert neighbour.connected
        for again in (token, minter.mint_worker("p1", "sbx-1", key.public, life=60)[0]):
            await refused(herd, again, key.seed)


async def test_revocations_survive_the_broker(herd: Broker) -> None:
    """A broker that was killed and restarted still refuses revoked keys."""
    key, now = Key.new(KeyKind.USER), datetime.now(UTC)
    token, expires = herd.minter().mint_worker("p1", "sbx-1", key.public, life=3600)
    keys = SpawnerKeys.read(herd.spawner_identity)
    async with herd.bus(P.SPAWNER) as spawner, Revoker.open(herd.url, keys, spawner.js) as revoker:
        await revoker.revoke({key.public: expires}, now)
    await herd.kill()
    await herd.restart()
    await refused(herd, token, key.seed)


async def test_revocation_list_is_shared_and_pruned(herd: Broker) -> None:
    """Concurrent revocations of several spawners all count; expired entries are removed, in the broker too."""
    keys, now = SpawnerKeys.read(herd.spawner_identity), datetime.now(UTC)
    short = {Key.new(KeyKind.USER).public: now + timedelta(minutes=1) for _ in range(20)}
    long = {Key.new(KeyKind.USER).public: now + timedelta(hours=1) for _ in range(20)}
    async with AsyncExitStack() as stack:
        spawner = await stack.enter_async_context(herd.bus(P.SPAWNER))
        revokers = [await stack.enter_async_context(Revoker.open(herd.url, keys, spawner.js)) for _ in range(2)]
        everything = list((short | long).items())
        await asyncio.gather(*(revokers[n % 2].revoke(dict([item]), now) for n, item in enumerate(everything)))
        assert (await RevocationList.of(spawner.js).read())[0].keys() == {key for key, _ in everything}
        assert revoked_at_broker(herd) == {key for key, _ in everything}
        await revokers[0].sync(now + timedelta(minutes=10))
        assert revoked_at_broker(herd) == long.keys()


def revoked_at_broker(herd: Broker) -> set[str]:
    return set(revocations(account_token(herd)))


def account_token(herd: Broker) -> str:
    return newest_token([herd.nats.directory], herd.identity.root_key("sandboxes").public) or ""


async def test_older_account_token_does_not_undo_revocations(herd: Broker) -> None:
    """A broker started with the token of the first set-up keeps the newer one that it has."""
    key, now = Key.new(KeyKind.USER), datetime.now(UTC)
    keys = SpawnerKeys.read(herd.spawner_identity)
    async with herd.bus(P.SPAWNER) as spawner, Revoker.open(herd.url, keys, spawner.js) as revoker:
        await revoker.revoke({key.public: now + timedelta(hours=1)}, now)
    await herd.stop()
    herd.initialise()
    await herd.start()
    assert revoked_at_broker(herd) == {key.public}


async def test_new_rights_at_an_upgrade_retain_the_revocations(herd: Broker) -> None:
    """An account whose permissions change with a new version still refuses revoked keys."""
    at_first = account_token(herd)
    key, now = Key.new(KeyKind.USER), datetime.now(UTC)
    keys = SpawnerKeys.read(herd.spawner_identity)
    async with herd.bus(P.SPAWNER) as spawner, Revoker.open(herd.url, keys, spawner.js) as revoker:
        await revoker.revoke({key.public: now + timedelta(hours=1)}, now)
    await herd.stop()
    (herd.spawner_identity / "account.json").write_text("{}")  # as if written by an older version
    herd.initialise()
    await herd.start()
    assert account_token(herd) != at_first
    assert revoked_at_broker(herd) == {key.public}


async def test_worker_replies_once_and_reaches_no_other_inbox(herd: Broker) -> None:
    """`allow_responses` permits one message to the requester's reply subject, and nothing else of `_INBOX`."""
    watch = ConnectionCallbacks()
    refused: list[str] = []
    watch.violated = refused.append
    async with (
        herd.bus(P.MESSAGE_RELAY) as relay,
        herd.bus(P.WORKER, project="p1", sandbox="sbx-1", watch=watch) as bus,
    ):
        with pytest.raises(NoResponderError):
            await relay.request(DELIVER, b"hello")

        async def receive(message: Msg) -> None:
            await message.respond(b"receipt")
            await message.respond(b"receipt again")
            await bus.client.publish("_INBOX_message-relay.other", b"")

        await bus.client.subscribe(DELIVER, cb=receive)
        await bus.flush(timeout=PATIENCE)
        assert await relay.request(DELIVER, b"hello", timeout=PATIENCE) == b"receipt"
        await eventually(lambda: len(refused) == 2)
        assert bus.connected


@pytest.mark.parametrize("row", [row for row in TABLE if row.name.startswith("request.worker.")], ids=lambda r: r.name)
async def test_worker_replies_only_to_requests_of_its_sandbox(herd: Broker, row: Subject) -> None:
    """A request reaches only the worker of the sandbox in its subject, once, and the reply reaches the requester."""
    async with (
        herd.bus(P.SPAWNER) as spawner,
        herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as own,
        herd.bus(P.WORKER, project="p1", sandbox="sbx-2") as neighbour,
        herd.bus(P.WORKER, project="p2", sandbox="sbx-1") as namesake,
    ):

        async def answer(message: Msg) -> None:
            await message.respond(message.subject.encode())

        subject = row.fill(project="p1", sandbox="sbx-1")
        for bus in (own, neighbour, namesake):
            await bus.client.subscribe(subject, cb=answer)
            await bus.client.flush()
            await bus.client.flush()
        assert [bus.violations for bus in (own, neighbour, namesake)] == [0, 1, 1]
        assert await spawner.request(subject, b"") == subject.encode()
        with pytest.raises(NoResponderError):
            await spawner.request(row.fill(project="p1", sandbox="sbx-2"), b"")


async def test_worker_fetches_chunks_in_its_own_name_only(herd: Broker) -> None:
    """The broker refuses a fetch with another requester in its subject, so the spawner may trust the subject."""
    async with herd.bus(P.SPAWNER) as spawner, herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus:

        async def answer(message: Msg) -> None:
            await message.respond(message.subject.encode())

        await spawner.client.subscribe(FETCH.pattern(), cb=answer)
        await spawner.flush(timeout=PATIENCE)
        own = FETCH.fill(project="p1", sandbox="sbx-1")
        assert await bus.request(own, b"", timeout=PATIENCE) == own.encode()
        for project, sandbox in (("p1", "sbx-2"), ("p2", "sbx-1")):
            before = bus.violations
            with pytest.raises(BusError):
                await bus.request(FETCH.fill(project=project, sandbox=sandbox), b"", timeout=0.2)
            await bus.flush(timeout=PATIENCE)  # the refusal may come later than the test waited for it
            assert bus.violations == before + 1


async def test_joiner_requests_credentials_of_its_own_sandbox_only(herd: Broker) -> None:
    """The joiner's credential permits exactly one request, and the reply reaches the joiner."""
    async with herd.bus(P.SPAWNER) as spawner, herd.bus(P.JOINER, project="p1", sandbox="sbx-1") as joiner:

        async def answer(message: Msg) -> None:
            await message.respond(message.subject.encode())

        await spawner.client.subscribe("sandherd.v1.request.spawner.credential.*.*", cb=answer)
        await spawner.flush(timeout=PATIENCE)
        own = "sandherd.v1.request.spawner.credential.p1.sbx-1"
        assert await joiner.request(own, b"", timeout=PATIENCE) == own.encode()
        before = joiner.violations
        with pytest.raises(BusError):
            await joiner.request("sandherd.v1.request.spawner.credential.p1.sbx-2", b"", timeout=0.2)
        await joiner.flush(timeout=PATIENCE)
        assert joiner.violations == before + 1


async def test_worker_message_over_account_limit_is_disconnected(herd: Broker) -> None:
    """A message larger than the account's limit, which the worker knows, ends the connection."""
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus:
        fits = b"x" * (256 * 1024 + 16 * 1024)
        assert (await bus.publish(EVENT, fits, msg_id="fits")).seq > 0
        await bus.client.publish(EVENT, b"x" * (WORKER_PAYLOAD + 1))
        await eventually(lambda: not bus.connected)


def widened(keys: SpawnerKeys, key: Key, name: str) -> dict[str, Any]:
    return claims.user(
        key.public,
        name=name,
        account=keys.account["sub"],
        principal=P.WORKER,
        project="p1",
        permissions=Permissions(publish=(">",), subscribe=(">",)),
    )


@pytest.mark.parametrize("signed_by", ["worker", "joiner", "operator_signing", "account", "stranger"])
async def test_only_the_set_up_key_permits_custom_permissions(herd: Broker, signed_by: str) -> None:
    """A user token with its own permissions is refused, whichever of the spawner's keys signed it."""
    keys, key = SpawnerKeys.read(herd.spawner_identity), Key.new(KeyKind.USER)
    signing = {
        "stranger": Key.new(KeyKind.ACCOUNT),
        "account": herd.identity.root_key("sandboxes"),
    }.get(signed_by) or getattr(keys, signed_by)
    await refused(herd, sign_claims(widened(keys, key, "sbx-1"), signing, int(datetime.now(UTC).timestamp())), key.seed)


async def test_token_for_a_wildcard_name_would_open_every_sandbox(herd: Broker) -> None:
    """The broker accepts the name `*`, so names must be checked where credentials are minted."""
    keys, key = SpawnerKeys.read(herd.spawner_identity), Key.new(KeyKind.USER)
    body = claims.user(key.public, name="*", account=keys.account["sub"], principal=P.WORKER, project="p1")
    token = sign_claims(body, keys.worker, int(datetime.now(UTC).timestamp()))
    async with herd.bus(P.EVENT_INGEST) as reader, worker(herd, lambda: token, key.seed) as bus:
        await bus.client.publish("sandherd.v1.event.p1.sbx-77.agent.message", b"stolen")
        await bus.client.drain()
        async with asyncio.timeout(PATIENCE):
            while not (state := (await reader.js.stream_info("EVENTS")).state).messages:
                await asyncio.sleep(0.005)  # nothing announces that a stream has stored such a message
        assert state.messages == 1
    with pytest.raises(UnsafeNameError):
        Minter(keys).mint_worker("p1", "*", key.public, life=60)


async def test_token_minted_for_wrong_account_is_refused(herd: Broker) -> None:
    """Keys of one herd give no access to another's account."""
    keys, key = SpawnerKeys.read(herd.spawner_identity), Key.new(KeyKind.USER)
    foreign = replace(keys, account={**keys.account, "sub": Key.new(KeyKind.ACCOUNT).public})
    token, _ = Minter(foreign).mint_worker("p1", "sbx-1", key.public, life=60)
    assert bearer(token).inbox == "_INBOX_sbx-1"
    await refused(herd, token, key.seed)
