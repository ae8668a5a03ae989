"""Sandboxes that flood the broker with a worker's real credential are disconnected and ended, and no other is."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import nats.errors
import pytest
from nats.aio.client import Client

from sandherd.bus.connection import BusError, ConnectionIdentity
from sandherd.bus.connection_list import BrokerConnections
from sandherd.bus.identity import Registrar, SpawnerKeys, bearer, write_secret
from sandherd.bus.identity.keys import Key, KeyKind
from sandherd.bus.identity.revocation import FOREVER, Revoker, account_token, push_token, system_connection
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import GetCredential
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.contracts.subjects import CREDENTIAL, Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

Spawn = Callable[..., Service]
JUNK = b'{"subject": "", "type": ""}'
"""Not an event, but a live subscriber can read it."""
BURST = 14_000
"""More messages than a sandbox may be ahead of its rate, if they are sent within a few seconds."""
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""nats-py leaves the socket of each refused login to the garbage collector, which warns."""


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


async def worker_of(herd: Broker, person: Any, **spec: Any) -> tuple[str, str]:
    """A lasting task, and its sandbox."""
    task = await person.submit(["sleep", "600"], **spec)
    view = await person.reaches(task, "running")
    return task, view.sandbox


async def raw_client(herd: Broker, sandbox: str) -> Client:
    """A connection with a worker's credential, always the same file, that does not reconnect."""
    client = Client()
    path = herd.home / "creds" / f"{sandbox}-worker.creds"
    if not path.exists():
        herd.credentials(Principal.WORKER, project="p1", sandbox=sandbox)
    identity = ConnectionIdentity.file(path)
    await client.connect(
        herd.url,
        inbox_prefix=f"_INBOX_{sandbox}".encode(),
        allow_reconnect=False,
        error_cb=_ignore,
        **identity.options(),
    )
    return client


async def _ignore(_error: Exception) -> None:
    return None


async def flood(client: Client, subject: str, body: bytes = JUNK) -> None:
    """Publish until the broker closes the connection: a burst, and more, as a slow machine's burst may be allowed."""

    async def publish() -> None:
        sent = 0
        with suppress(nats.errors.Error, OSError):
            while not client.is_closed:
                for _ in range(500):
                    await client.publish(subject, body)
                await client.flush(timeout=PATIENCE)
                sent += 500
                await asyncio.sleep(0 if sent < BURST else 0.05)

    publishing = asyncio.create_task(publish())
    try:
        await closed(client)
    finally:
        publishing.cancel()  # a flush without a reply waits for its whole time
        await asyncio.gather(publishing, return_exceptions=True)


async def closed(client: Client) -> None:
    async with asyncio.timeout(PATIENCE):
        while not client.is_closed:
            await asyncio.sleep(0.01)


async def refused(herd: Broker, sandbox: str) -> bool:
    """Whether the broker refuses the sandbox's credential, the same file."""
    try:
        await (await raw_client(herd, sandbox)).close()
    except (nats.errors.Error, OSError):
        return True
    return False


FLOODED: Final = {
    "junk events": "sandherd.v1.event.p1.{sandbox}.agent.heartbeat",
    "output": "sandherd.v1.output.p1.{sandbox}",
    "denied": "sandherd.v1.event.p2.{sandbox}.agent.completed",
}


async def test_flooding_worker_is_disconnected_and_its_neighbour_is_not(
    herd: Broker, spawner: Spawn, person: Any
) -> None:
    """A flooding worker is disconnected and revoked, and its sandbox ended with the reason; its neighbour is not."""
    async with spawner(max_sandboxes=4).running():
        neighbour, _ = await worker_of(herd, person)
        for kind, subject in FLOODED.items():
            task, sandbox = await worker_of(herd, person)
            client = await raw_client(herd, sandbox)
            await flood(client, subject.format(sandbox=sandbox))
            ended = await person.ended(task)
            assert (ended.state, ended.error_type) == ("failed", ErrorType.FLOODING), kind
            assert "messages per second" in (ended.error or "")
            await person.receives(sandbox, "sandbox.stopping")
            assert person.event_data(sandbox, "sandbox.stopping")["reason"] == "flooding"
            assert await refused(herd, sandbox)
            assert (await person.task(neighbour)).state == "running"


async def test_excess_connections_of_a_worker_are_all_closed(herd: Broker, spawner: Spawn, person: Any) -> None:
    """Hundreds of connections of a worker are all closed, and none can be opened again."""
    async with spawner(max_sandboxes=4).running(), AsyncExitStack() as stack:
        task, sandbox = await worker_of(herd, person)
        clients: list[Client] = []
        with suppress(nats.errors.Error, OSError):  # it is cut off before it has all of them
            for _ in range(200):
                clients.append(await raw_client(herd, sandbox))
                stack.push_async_callback(clients[-1].close)
        assert len(clients) > 3
        for client in clients:
            await closed(client)
        ended = await person.ended(task)
        assert (ended.error_type, "connections" in (ended.error or "")) == (ErrorType.FLOODING, True)
        assert await refused(herd, sandbox)


async def test_worker_is_limited_in_subscriptions(herd: Broker) -> None:
    """A worker's credential permits a few subscriptions; the broker refuses further ones."""
    client = await raw_client(herd, "sbx-many")
    try:
        with suppress(nats.errors.Error, OSError):
            for number in range(300):
                await client.subscribe(f"_INBOX_sbx-many.{number}")
            await client.flush(timeout=PATIENCE)
        async with BrokerConnections.open(herd.url, herd.spawner_identity / "connections.creds") as table:
            held = [row.subscriptions for row in await table.read() if row.open and row.user.name == "sbx-many"]
        assert max(held, default=0) <= 16
    finally:
        await client.close()


async def test_disconnected_sandbox_gets_no_new_credential(herd: Broker, spawner: Spawn, person: Any) -> None:
    """After the flood the joiner's request for a credential is refused."""
    async with spawner(stop_grace=30).running():
        task, sandbox = await worker_of(herd, person)
        client = await raw_client(herd, sandbox)
        await flood(client, f"sandherd.v1.output.p1.{sandbox}")
        await person.ended(task)
        question = GetCredential(public_key=Key.new(KeyKind.USER).public, fence=1).model_dump_json().encode()
        try:
            async with herd.bus(Principal.JOINER, project="p1", sandbox=sandbox, connect_timeout=5) as joiner:
                reply = await joiner.request(CREDENTIAL.fill(project="p1", sandbox=sandbox), question, timeout=PATIENCE)
        except BusError:  # the broker itself refuses a sandbox that has ended
            assert (await person.sandbox(sandbox)).state in SANDBOX_ENDED
        else:
            assert b'"refused"' in reply
            assert b"cut off" in reply or b"has ended" in reply


async def test_excess_connections_of_a_client_revoke_its_credential(herd: Broker, spawner: Spawn, person: Any) -> None:
    """All of a client's connections are closed for ever; other users of the project, and a new credential, work."""
    path = herd.home / "creds" / "crowd.creds"
    write_secret(path, Registrar(herd.identity).mint_person(Principal.CLIENT, "crowd", project="p1"))
    async with spawner(person_connections=4).running(), AsyncExitStack() as stack:
        crowd: list[Client] = []
        with suppress(nats.errors.Error, OSError):  # it can open none after its revocation
            for _ in range(400):
                crowd.append(await client_of(herd, path))
                stack.push_async_callback(crowd[-1].close)
                await asyncio.sleep(0.02)
        for client in crowd:
            await closed(client)
        await person.receives("crowd", "credential.revoked")
        found = person.event_data("crowd", "credential.revoked")
        assert (found["public_key"], found["role"], found["limit"]) == (public_key_of(path), "client", 4)
        with pytest.raises((nats.errors.Error, OSError)):
            await client_of(herd, path)
        write_secret(path, Registrar(herd.identity).mint_person(Principal.CLIENT, "crowd", project="p1"))
        again = await client_of(herd, path)
        await again.flush(timeout=PATIENCE)
        await again.close()
        assert await person.submit(["true"])
        assert person.bus.reconnects == 0


@pytest.mark.own_broker
async def test_revoked_credential_stays_revoked(herd: Broker, spawner: Spawn) -> None:
    """A revocation survives a token of the account without it, as `sandherd identity push` sends, and a restart."""
    path = herd.credentials(Principal.CLIENT, project="p1")
    now = datetime.now(UTC)
    async with spawner().running() as _, herd.bus(Principal.SPAWNER) as bus:
        keys = SpawnerKeys.read(herd.spawner_identity)
        async with Revoker.open(herd.url, keys, bus.js) as revoker:
            assert revoker.users is not None
            await revoker.users.revoke({public_key_of(path): FOREVER}, now)
            assert await refuses(herd, path)
            async with system_connection(herd.url, keys.claims_credentials) as system:
                later = int(now.timestamp()) + 2
                await push_token(system, account_token(keys.people or {}, {}, keys.operator_signing, later))
            client = await client_of(herd, path)
            await closed(client)
            assert await refuses(herd, path)
    await herd.kill()
    await herd.restart()
    assert await refuses(herd, path)


def public_key_of(path: Path) -> str:
    return bearer(path.read_text()).public_key


async def client_of(herd: Broker, path: Path) -> Client:
    """A connection with a user's credential that does not reconnect."""
    client = Client()
    inbox = bearer(path.read_text()).inbox.encode()
    identity = ConnectionIdentity.file(path)
    await client.connect(herd.url, inbox_prefix=inbox, allow_reconnect=False, error_cb=_ignore, **identity.options())
    return client


async def refuses(herd: Broker, path: Path) -> bool:
    """Whether the broker refuses this credential."""
    try:
        await (await client_of(herd, path)).close()
    except (nats.errors.Error, OSError):
        return True
    return False
