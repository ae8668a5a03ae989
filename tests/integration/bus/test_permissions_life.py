"""A worker's credential from minting to its end: it is renewed, runs out, is taken back, and never widens."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, BusError, Identity, NoResponderError, PublishFailedError, Watch
from sandherd.bus.identity import Key, Kind, Minter, SpawnerKeys, bearer, claims
from sandherd.bus.identity.keys import sign_claims
from sandherd.bus.identity.material import revocations
from sandherd.bus.identity.revoking import RevocationList, Revoker
from sandherd.bus.permissions import WORKER_PAYLOAD, Permissions
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.subjects import FETCH, TABLE, Principal, Subject
from sandherd.stack.broker import Broker
from sandherd.stack.cluster import newest_token
from tests.patience import PATIENCE

P = Principal
EVENT = "sandherd.v1.event.p1.sbx-1.agent.message"
DELIVER = "sandherd.v1.deliver.p1.sbx-1"


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # the broker sets no event here
            await asyncio.sleep(0.005)


def is_back(bus: Bus, times: int) -> bool:
    return bus.reconnects >= times and bus.connected


def worker(
    herd: Broker, token: Callable[[], str], seed: str, patience: float = PATIENCE
) -> AbstractAsyncContextManager[Bus]:
    identity = Identity.renewing(token, seed)
    return Bus.open(herd.url, name="sbx-1", identity=identity, inbox="_INBOX_sbx-1", patience=patience)


async def refused(herd: Broker, token: str, seed: str) -> None:
    """The broker lets nobody in with it."""
    with pytest.raises(BusError):
        async with worker(herd, lambda: token, seed, patience=0):
            pass


async def test_a_token_that_runs_out_cuts_the_connection_and_opens_no_other(herd: Broker) -> None:
    """An expired worker is cut off by the broker, and refused when it comes back."""
    key = Key.new(Kind.USER)
    token, expires = herd.minter().mint_worker("p1", "sbx-1", key.public, life=8)
    async with worker(herd, lambda: token, key.seed) as bus:
        assert bus.connected
        await until(lambda: not bus.connected)
        assert datetime.now(UTC) >= expires
    # The broker lets a token in until its last second is over, and cuts it then.
    await until(lambda: datetime.now(UTC) > expires + timedelta(seconds=1))
    await refused(herd, token, key.seed)


async def test_renewal_in_the_middle_of_talking_loses_nothing(herd: Broker) -> None:
    """Events said while the connection changes its token four times are all in the stream, each once."""
    key, minter = Key.new(Kind.USER), herd.minter()
    tokens = [minter.mint_worker("p1", "sbx-1", key.public, life=60)[0]]
    async with herd.bus(P.EVENT_INGEST) as reader, worker(herd, lambda: tokens[-1], key.seed) as bus:

        async def talk() -> int:
            said = 0
            while bus.reconnects < 4 or said < 200:
                try:
                    await bus.publish(EVENT, b"{}", msg_id=f"m-{said}", timeout=0.3)
                except PublishFailedError:
                    continue  # its acknowledgement was lost on the way: say it again, under the same id
                said += 1
            return said

        talking = asyncio.create_task(talk())
        for round_ in range(1, 5):
            tokens.append(minter.mint_worker("p1", "sbx-1", key.public, life=60)[0])
            await bus.client.force_reconnect()
            await until(partial(is_back, bus, round_))
        said = await talking
        state = (await reader.js.stream_info("EVENTS")).state
        assert state.messages == said


async def test_a_revoked_worker_is_cut_and_refused_and_its_neighbour_goes_on(herd: Broker) -> None:
    """Revoking cuts the connection at once, refuses the same key even with a new token, and touches nobody else."""
    key, minter, now = Key.new(Kind.USER), herd.minter(), datetime.now(UTC)
    token, expires = minter.mint_worker("p1", "sbx-1", key.public, life=3600)
    async with AsyncExitStack() as stack:
        spawner = await stack.enter_async_context(herd.bus(P.SPAWNER))
        keys = SpawnerKeys.read(herd.spawner_identity)
        revoker = await stack.enter_async_context(Revoker.open(herd.url, keys, spawner.js))
        neighbour = await stack.enter_async_context(herd.bus(P.WORKER, project="p1", sandbox="sbx-2"))
        bus = await stack.enter_async_context(worker(herd, lambda: token, key.seed))
        await revoker.revoke({key.public: expires}, now)
        await until(lambda: not bus.connected)
        assert neighbour.connected
        for again in (token, minter.mint_worker("p1", "sbx-1", key.public, life=60)[0]):
            await refused(herd, again, key.seed)


async def test_revocations_outlive_the_broker(herd: Broker) -> None:
    """A broker that was killed and started again still refuses who was revoked before."""
    key, now = Key.new(Kind.USER), datetime.now(UTC)
    token, expires = herd.minter().mint_worker("p1", "sbx-1", key.public, life=3600)
    keys = SpawnerKeys.read(herd.spawner_identity)
    async with herd.bus(P.SPAWNER) as spawner, Revoker.open(herd.url, keys, spawner.js) as revoker:
        await revoker.revoke({key.public: expires}, now)
    await herd.kill()
    await herd.restart()
    await refused(herd, token, key.seed)


async def test_the_list_is_shared_and_pruned(herd: Broker) -> None:
    """Several spawners revoke at once and all of it counts; what has expired is forgotten, in the broker too."""
    keys, now = SpawnerKeys.read(herd.spawner_identity), datetime.now(UTC)
    short = {Key.new(Kind.USER).public: now + timedelta(minutes=1) for _ in range(20)}
    long = {Key.new(Kind.USER).public: now + timedelta(hours=1) for _ in range(20)}
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


async def test_an_older_account_token_at_the_next_start_does_not_undo_revocations(herd: Broker) -> None:
    """The broker is started with the token made at the first set-up; it keeps the newer one that it holds."""
    key, now = Key.new(Kind.USER), datetime.now(UTC)
    keys = SpawnerKeys.read(herd.spawner_identity)
    async with herd.bus(P.SPAWNER) as spawner, Revoker.open(herd.url, keys, spawner.js) as revoker:
        await revoker.revoke({key.public: now + timedelta(hours=1)}, now)
    await herd.stop()
    herd.initialise()
    await herd.start()
    assert revoked_at_broker(herd) == {key.public}


async def test_new_rights_at_an_upgrade_keep_the_revocations(herd: Broker) -> None:
    """An account whose permissions change with a new version still refuses who was revoked before."""
    at_first = account_token(herd)
    key, now = Key.new(Kind.USER), datetime.now(UTC)
    keys = SpawnerKeys.read(herd.spawner_identity)
    async with herd.bus(P.SPAWNER) as spawner, Revoker.open(herd.url, keys, spawner.js) as revoker:
        await revoker.revoke({key.public: now + timedelta(hours=1)}, now)
    await herd.stop()
    (herd.spawner_identity / "account.json").write_text("{}")  # as if written by an older version
    herd.initialise()
    await herd.start()
    assert account_token(herd) != at_first
    assert revoked_at_broker(herd) == {key.public}


async def test_a_worker_answers_its_delivery_once_and_reaches_no_other_inbox(herd: Broker) -> None:
    """`allow_responses` opens the asker's reply subject for one message, and nothing else of `_INBOX`."""
    watch = Watch()
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
        await bus.settle(timeout=PATIENCE)
        assert await relay.request(DELIVER, b"hello", timeout=PATIENCE) == b"receipt"
        await until(lambda: len(refused) == 2)
        assert bus.connected


@pytest.mark.parametrize("row", [row for row in TABLE if row.name.startswith("request.worker.")], ids=lambda r: r.name)
async def test_a_worker_answers_what_its_own_sandbox_is_asked_and_nothing_else(herd: Broker, row: Subject) -> None:
    """Each request reaches the worker of the sandbox that its subject names, once, and the answer reaches the asker."""
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


async def test_a_worker_asks_for_pieces_in_its_own_name_only(herd: Broker) -> None:
    """`fetch` names the asker in its subject: another's is refused by the broker, so the spawner may trust it."""
    async with herd.bus(P.SPAWNER) as spawner, herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus:

        async def answer(message: Msg) -> None:
            await message.respond(message.subject.encode())

        await spawner.client.subscribe(FETCH.pattern(), cb=answer)
        await spawner.settle(timeout=PATIENCE)
        own = FETCH.fill(project="p1", sandbox="sbx-1")
        assert await bus.request(own, b"", timeout=PATIENCE) == own.encode()
        for project, sandbox in (("p1", "sbx-2"), ("p2", "sbx-1")):
            before = bus.violations
            with pytest.raises(BusError):
                await bus.request(FETCH.fill(project=project, sandbox=sandbox), b"", timeout=0.2)
            await bus.settle(timeout=PATIENCE)  # the refusal may come later than it was waited for
            assert bus.violations == before + 1


async def test_a_joiner_asks_for_its_own_sandbox_only_and_hears_the_answer(herd: Broker) -> None:
    """The narrow credential serves for exactly one question."""
    async with herd.bus(P.SPAWNER) as spawner, herd.bus(P.JOINER, project="p1", sandbox="sbx-1") as joiner:

        async def answer(message: Msg) -> None:
            await message.respond(message.subject.encode())

        await spawner.client.subscribe("sandherd.v1.request.spawner.credential.*.*", cb=answer)
        await spawner.settle(timeout=PATIENCE)
        own = "sandherd.v1.request.spawner.credential.p1.sbx-1"
        assert await joiner.request(own, b"", timeout=PATIENCE) == own.encode()
        before = joiner.violations
        with pytest.raises(BusError):
            await joiner.request("sandherd.v1.request.spawner.credential.p1.sbx-2", b"", timeout=0.2)
        await joiner.settle(timeout=PATIENCE)
        assert joiner.violations == before + 1


async def test_a_worker_may_say_what_fits_and_not_more(herd: Broker) -> None:
    """The account's limit on a worker's message is the one that the worker is told: larger ones end the connection."""
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus:
        fits = b"x" * (256 * 1024 + 16 * 1024)
        assert (await bus.publish(EVENT, fits, msg_id="fits")).seq > 0
        await bus.client.publish(EVENT, b"x" * (WORKER_PAYLOAD + 1))
        await until(lambda: not bus.connected)


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
async def test_no_key_but_the_set_ups_makes_a_user_with_rights_of_its_own(herd: Broker, signed_by: str) -> None:
    """A user who brings his own permissions is refused, whichever of the spawner's keys signed it."""
    keys, key = SpawnerKeys.read(herd.spawner_identity), Key.new(Kind.USER)
    signing = {
        "stranger": Key.new(Kind.ACCOUNT),
        "account": herd.identity.root_key("sandboxes"),
    }.get(signed_by) or getattr(keys, signed_by)
    await refused(herd, sign_claims(widened(keys, key, "sbx-1"), signing, int(datetime.now(UTC).timestamp())), key.seed)


async def test_why_names_are_checked_where_credentials_are_made(herd: Broker) -> None:
    """A token for the name `*` would open every sandbox; the broker does not mind, so minting must."""
    keys, key = SpawnerKeys.read(herd.spawner_identity), Key.new(Kind.USER)
    body = claims.user(key.public, name="*", account=keys.account["sub"], principal=P.WORKER, project="p1")
    token = sign_claims(body, keys.worker, int(datetime.now(UTC).timestamp()))
    async with herd.bus(P.EVENT_INGEST) as reader, worker(herd, lambda: token, key.seed) as bus:
        await bus.client.publish("sandherd.v1.event.p1.sbx-77.agent.message", b"stolen")
        await bus.client.drain()
        async with asyncio.timeout(PATIENCE):
            while not (state := (await reader.js.stream_info("EVENTS")).state).messages:
                await asyncio.sleep(0.005)  # nobody is told when a stream has stored what needs no acknowledgement
        assert state.messages == 1
    with pytest.raises(UnsafeNameError):
        Minter(keys).mint_worker("p1", "*", key.public, life=60)


async def test_a_minter_with_the_wrong_account_makes_nothing_of_use(herd: Broker) -> None:
    """Keys of one herd open nothing in another's account."""
    keys, key = SpawnerKeys.read(herd.spawner_identity), Key.new(Kind.USER)
    foreign = replace(keys, account={**keys.account, "sub": Key.new(Kind.ACCOUNT).public})
    token, _ = Minter(foreign).mint_worker("p1", "sbx-1", key.public, life=60)
    assert bearer(token).inbox == "_INBOX_sbx-1"
    await refused(herd, token, key.seed)
