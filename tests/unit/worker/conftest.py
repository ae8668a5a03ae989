"""Parts of a worker, put together without a broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.decoder import read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EventData
from sandherd.process_signals import end
from sandherd.processes import living
from sandherd_worker import processes
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.harnesses.driver import DriverHarness
from sandherd_worker.processes import Reaper, descendants
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind, SpoolRecord
from sandherd_worker.spool_reader import SpoolReader
from tests.polling import eventually as wait_until
from tests.unit.worker.agent_tree import AgentTree, made
from tests.unit.worker.echo_harness import Make, Worker, maker


def _assignment(home: Path, **variables: str) -> Assignment:
    return Assignment.read(
        {
            "SANDHERD_PROJECT": "p1",
            "SANDHERD_SANDBOX_ID": "sbx-1",
            "SANDHERD_TASK_ID": "task-1",
            "NATS_URL": "nats://127.0.0.1:1",
            "SANDHERD_TASK_FILE": str(home / "task.json"),
            "SANDHERD_STATE_DIR": str(home),
            "SANDHERD_WORK_DIR": str(home / "work"),
            **variables,
        }
    )


def _records(spool: Spool) -> list[SpoolRecord]:
    """Everything in the spool that is not acknowledged."""
    reader, found = SpoolReader(spool), []
    while (spooled := reader.next()) is not None:
        found.append(spooled.record)
    reader.close()
    return found


def _published_of(spool: Spool) -> list[Envelope[Any]]:
    """The events in the spool, read as a service would read them."""
    return [read_event(one.subject, one.payload) for one in _records(spool) if one.kind is RecordKind.EVENT]


class Listener:
    """A sink that records what it receives; `gate` delays it."""

    def __init__(self) -> None:
        self.events: list[EventData] = []
        self.output = ""
        self.gate = asyncio.Event()
        self.gate.set()

    async def publish(self, data: EventData) -> bool:
        await self.gate.wait()
        self.events.append(data)
        return True

    async def show(self, text: str) -> None:
        await self.gate.wait()
        self.output += text

    def types(self) -> list[str]:
        return [event.type.removeprefix("agent.") for event in self.events]


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    opened = Spool.open(tmp_path / "spool", limit=1 << 30)
    yield opened
    await opened.close()


@pytest.fixture
def emitter(spool: Spool, tmp_path: Path) -> Emitter:
    return Emitter(spool, _assignment(tmp_path), Redactor(["hunter2-hunter2"]))


@pytest.fixture
def assignment() -> Callable[..., Assignment]:
    """Makes an assignment for a state directory, with further variables."""
    return _assignment


@pytest.fixture
def records() -> Callable[[Spool], list[SpoolRecord]]:
    """Reads everything in a spool that is not acknowledged."""
    return _records


@pytest.fixture
def published_of() -> Callable[[Spool], list[Envelope[Any]]]:
    """Reads the events in a spool, as a service would read them."""
    return _published_of


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], str], Awaitable[None]]:
    """Waits until a condition holds."""
    return wait_until


@pytest.fixture
async def reaper(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reaper]:
    """It reaps what a test starts; what is left of that at the end is ended.

    A worker ends all processes below its own. Here that is the process of the tests, so older processes are hidden from
    it, such as a broker that other tests share.
    """
    older = descendants()
    monkeypatch.setattr(processes, "living", lambda: {pid: stat for pid, stat in living().items() if pid not in older})
    reaper = Reaper()
    reaper.start()
    yield reaper
    await end(descendants, 0)
    reaper.stop()


@pytest.fixture
async def tree(
    tmp_path: Path, spool: Spool, reaper: Reaper, assignment: Any, records: Any, published_of: Any
) -> AgentTree:
    """A work tree for a branch, which is not checked out yet."""
    return made(tmp_path, spool, reaper, assignment, records, published_of)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
async def make(tmp_path: Path, listener: Any, reaper: Reaper, worker: Worker) -> AsyncIterator[Make]:
    """Makes harnesses of the echo driver; they are stopped at the end."""
    made: list[DriverHarness] = []
    build = maker(tmp_path, listener, reaper, worker)

    def make(*task: str, **options: Any) -> DriverHarness:
        made.append(build(*task, **options))
        return made[-1]

    yield make
    for harness in made:
        await harness.stop(0)
