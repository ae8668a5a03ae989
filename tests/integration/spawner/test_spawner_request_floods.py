"""While a worker floods a service with requests, another project's requests are answered and its events stored."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from sandherd.bus.connection import Bus, BusError, ConnectionIdentity, NoResponderError, RequestTimeoutError
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import ListLiveSandboxes, ListLiveTasks
from sandherd.contracts.requests.worker import ListPeers, PeerList
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.integration.spawner.conftest import ProjectUser
from tests.patience import PATIENCE
from tests.polling import eventually

Spawn = Callable[..., Service]
MAD = "mad"
"""The project of the worker that floods."""
REQUESTS = {
    "peers": ("request.spawner.peers", "{}"),
    "artifacts": ("request.spawner.fetch", '{"artifact": "art-none", "owner": "sbx-none"}'),
}
BOUNDED = {
    "broker denied permission",
    "reply not sent",
    "received messages dropped, queue full",
    "requests refused, too many of one source",
}
"""Log messages that each request could cause."""
pytestmark = [
    pytest.mark.long,  # on a machine with a load of 35 it takes minutes
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""nats-py leaves the socket of each refused login to the garbage collector, which warns."""


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


@asynccontextmanager
async def other(herd: Broker, person: ProjectUser) -> AsyncIterator[ProjectUser]:
    """A user of the project of the worker that floods."""
    async with herd.bus(Principal.CLIENT, project=MAD) as bus:
        someone = ProjectUser(bus, eventually, person.home, project=MAD)
        await someone.listen()
        yield someone


@asynccontextmanager
async def flood_of(herd: Broker, sandbox: str, kind: str) -> AsyncIterator[asyncio.Task[Any]]:
    """Flood the spawner with the worker's credential, from the start of the block to its end.

    Yields a task with the program's further output, which ends with the program.
    """
    name, document = REQUESTS[kind]
    subject = BY_NAME[name].fill(project=MAD, sandbox=sandbox)
    path = herd.credentials(Principal.WORKER, project=MAD, sandbox=sandbox)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.spawner.flooding_requester"),
        *(herd.url, str(path), f"_INBOX_{sandbox}", subject, document),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"flooding\n"
        yield (output := asyncio.create_task(process.stdout.read()))
        await output
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ask_until(flooding: asyncio.Task[Any], person: ProjectUser, neighbour: Callable[[], Awaitable[Any]]) -> None:
    """Send requests of another project until the flood has ended: each of its user's is answered the first time.

    Those of its worker are of the flooded kind. Their replies are lost if the account of sandboxes changes meanwhile,
    which it does when the flood is cut off, so they are repeated.
    """
    while True:
        ended = flooding.done()
        await person.bus.ask(ListLiveTasks(), "p1", timeout=PATIENCE)
        await person.bus.ask(ListLiveSandboxes(), "p1", timeout=PATIENCE)
        await eventually(neighbour, "a reply to the neighbour")
        if ended:
            return
        await asyncio.sleep(0.05)


async def peers_of(worker: Bus, project: str, sandbox: str) -> PeerList | None:
    """A reply to a request of the flooded kind; None if it was dropped, which its requester repeats."""
    try:
        return await worker.ask(ListPeers(), project, sandbox=sandbox, timeout=10)
    except (RequestTimeoutError, NoResponderError):
        return None


async def is_refused(herd: Broker, sandbox: str) -> bool:
    """Whether the broker refuses the credential of the flood. It must not accept it.

    The end of the connection may be seen before the reason.
    """
    identity = ConnectionIdentity.file(herd.home / "creds" / f"{sandbox}-worker.creds")
    try:
        async with Bus.open(herd.url, name="revoked", identity=identity, inbox=f"_INBOX_{sandbox}", connect_timeout=0):
            pytest.fail("the credential is not revoked")
    except BusError as error:
        return "authorization" in str(error).lower()


@pytest.mark.parametrize("kind", REQUESTS)
async def test_worker_that_floods_with_requests_is_disconnected_and_other_projects_continue(
    herd: Broker, spawner: Spawn, person: Any, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A flooding worker is disconnected, its credential revoked, its task ended; p1 is served and misses no event.

    A task of p1 that was submitted during the flood is completed.
    """
    async with spawner(max_sandboxes=6).running(), other(herd, person) as mad:
        mad_task = await mad.submit(["sleep", "600"])
        sandbox = (await mad.reaches(mad_task, "running")).sandbox or ""
        lasting = await person.submit(["sleep", "600"])
        neighbour = (await person.reaches(lasting, "running")).sandbox
        async with (
            herd.bus(Principal.WORKER, project="p1", sandbox=neighbour) as worker,
            flood_of(herd, sandbox, kind) as flooding,
        ):
            task = await person.submit(["true"])
            await ask_until(flooding, person, lambda: peers_of(worker, "p1", neighbour))
            assert await flooding == b"closed\n"
            assert (await person.ended(task)).state == "completed"
        ended = await mad.ended(mad_task)
        assert (ended.state, ended.error_type) == ("failed", ErrorType.FLOODING)
        await eventually(lambda: is_refused(herd, sandbox), "a refusal")
        after = await person.submit(["true"])
        assert (await person.ended(after)).state == "completed"
        assert (await person.task(lasting)).state == "running"
        await eventually(lambda: {"task.completed"} <= {*person.types(task)} & {*person.types(after)})
        person.check_sequences()
    assert person.bus.reconnects == 0
    lines = capfd.readouterr().err.splitlines()
    found = [line for line in lines if any(message in line for message in BOUNDED)]
    assert len(found) < 20, found[:5]
