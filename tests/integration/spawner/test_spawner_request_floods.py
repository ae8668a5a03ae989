"""A worker floods a service with requests, and another project's requests are answered and its events are stored."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats
import nats.errors
import pytest

from sandherd.bus.connection import Bus, Identity, RequestTimeoutError
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import LiveSandboxes, LiveTasks
from sandherd.contracts.requests.worker import AskPeers, PeerList
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.integration.spawner.conftest import Person
from tests.patience import PATIENCE
from tests.polling import eventually

Spawn = Callable[..., Service]
MAD = "mad"
"""The project of the worker that floods."""
REQUESTS = {
    "peers": ("request.spawner.peers", "{}"),
    "artifacts": ("request.spawner.fetch", '{"artifact": "art-none", "owner": "sbx-none", "chunk": 0}'),
    "invalid": ("request.spawner.peers", "{" * 60),
}
BOUNDED = {"broker denied permission", "reply not sent", "received messages dropped, too many wait"}
"""Log messages that a request could cause each."""


@asynccontextmanager
async def other(herd: Broker, person: Person) -> AsyncIterator[Person]:
    """A user of the project of the worker that floods."""
    async with herd.bus(Principal.CLIENT, project=MAD) as bus:
        someone = Person(bus, eventually, person.home, project=MAD)
        await someone.listen()
        yield someone


@asynccontextmanager
async def flood_of(herd: Broker, sandbox: str, kind: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program with the worker's credential that floods the spawner; it has begun, and is ended with the block."""
    name, document = REQUESTS[kind]
    subject = BY_NAME[name].fill(project=MAD, sandbox=sandbox)
    path = herd.credentials(Principal.WORKER, project=MAD, sandbox=sandbox)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.spawner.flooding_requester"),
        *(herd.url, str(path), f"_INBOX_{sandbox}", subject, document),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"flooding\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def answered_until(flooding: asyncio.Task[Any], person: Person, worker: Bus, sandbox: str) -> int:
    """Send requests of other kinds, and the flooded one, until the flood has ended. Returns how many were answered.

    Those of other kinds have one attempt. Of the flooded kind the broker's client may drop some: they are repeated.
    """
    answered = 0
    while not flooding.done() or not answered:
        assert (await person.bus.ask(LiveTasks(), person.project, timeout=PATIENCE)).tasks
        assert (await person.bus.ask(LiveSandboxes(), person.project, timeout=PATIENCE)).sandboxes
        await eventually(lambda: peers_of(worker, person.project, sandbox), "peers of the other project")
        answered += 3
    return answered


async def peers_of(worker: Bus, project: str, sandbox: str) -> PeerList | None:
    try:
        return await worker.ask(AskPeers(), project, sandbox=sandbox, timeout=10)
    except RequestTimeoutError:
        return None


async def is_refused(herd: Broker, sandbox: str) -> bool:
    """Whether the broker refuses the credential with which the worker has flooded."""
    path = herd.home / "creds" / f"{sandbox}-worker.creds"
    client = nats.NATS()
    try:
        await client.connect(
            herd.url, allow_reconnect=False, inbox_prefix=f"_INBOX_{sandbox}", **Identity.file(path).options()
        )
    except (nats.errors.Error, OSError):
        return True
    await client.close()
    return False


async def stored_events(herd: Broker, project: str) -> int:
    """How many events of a project are in the stream."""
    async with herd.provisioner() as jetstream:
        subjects = (await jetstream.stream_info("EVENTS", subjects_filter=f"sandherd.v1.event.{project}.>")).state
    return sum((subjects.subjects or {}).values())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", REQUESTS)
async def test_worker_that_floods_with_requests_is_disconnected_and_other_projects_continue(
    herd: Broker, spawner: Spawn, person: Any, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its connection is closed, its credential revoked and its task ended; all requests of p1 meanwhile are answered,
    a task that was submitted during the flood is completed, and no event of p1 is missing."""
    async with spawner(max_sandboxes=6).running(), other(herd, person) as mad:
        mad_task = await mad.submit(["sleep", "600"])
        sandbox = (await mad.reaches(mad_task, "running")).sandbox
        lasting = await person.submit(["sleep", "600"])
        neighbour = (await person.reaches(lasting, "running")).sandbox
        async with (
            herd.bus(Principal.WORKER, project="p1", sandbox=neighbour) as worker,
            flood_of(herd, sandbox, kind) as process,
        ):
            task = await person.submit(["true"])
            flooding = asyncio.create_task(process.communicate())
            assert await answered_until(flooding, person, worker, neighbour)
            assert (await flooding)[0] == b"closed\n"
            assert (await person.ended(task)).state == "completed"
        ended = await mad.ended(mad_task)
        assert (ended.state, ended.error_type) == ("failed", ErrorType.FLOODING)
        assert await is_refused(herd, sandbox)
        after = await person.submit(["true"])
        assert (await person.ended(after)).state == "completed"
        assert (await person.task(lasting)).state == "running"
        await eventually(lambda: {"task.completed"} <= {*person.types(task)} & {*person.types(after)})
        person.check_sequences()
    assert person.bus.reconnects == 0
    lines = capfd.readouterr().err.splitlines()
    found = [line for line in lines if any(message in line for message in BOUNDED)]
    assert len(found) < 20, found[:5]
