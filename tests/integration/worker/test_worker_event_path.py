"""Compares the path of an event in docs/architecture.md with the files that run while an event becomes a row."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from docs import architecture_paths
from event_ingest.main import compose
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.doubles.stream_admin import stream_admin
from tests.patience import PATIENCE
from tests.polling import eventually
from tests.traced_files import TracedFiles

TIMERS: Final = {
    "libs/sandherd/bus/lease.py",
    "libs/sandherd/service/consumer_lag.py",
    "libs/sandherd/service/storage_watch.py",
    "libs/sandherd/service/stream_usage.py",
    "services/event-ingest/event_ingest/stream_purge.py",
    "services/event-ingest/event_ingest/stream_purge_policy.py",
    "services/event-ingest/event_ingest/schema.py",
    "services/event-ingest/event_ingest/gauges.py",
    "services/worker/sandherd_worker/broker_session.py",
    "services/worker/sandherd_worker/file_tracker.py",
    "services/worker/sandherd_worker/heartbeat.py",
    "services/worker/sandherd_worker/worker_lifecycle.py",
}
"""Files that run at intervals, or call a listener at each change of the spool."""
EVENTS: Final = 3
"""The number of events; files that do not run for all of them run beside the path, as a timer may at any moment."""
EVERYWHERE: Final = ("libs/sandherd/telemetry/", "libs/sandherd/concurrency.py", "libs/sandherd/contracts/names.py")
"""Metrics, spans, cancellation and checks of names: almost every file uses them, so the page does not list them."""


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[TracedFiles]:
    folder = tmp_path / "traced"
    folder.mkdir()
    files = TracedFiles(folder)
    yield files
    files.close()


@pytest.fixture
async def database(herd: Broker, postgres: str) -> AsyncIterator[Any]:
    """The database that event-ingest stores events in."""
    settings = herd.settings(Principal.EVENT_INGEST, database_url=postgres)
    async with stream_admin(herd), compose(settings).running():
        connection = await asyncpg.connect(postgres)
        yield connection
        await connection.close()


async def stored(database: Any, event_type: str, count: int = 1) -> None:
    """Wait until this number of events of a type is in the database."""
    async with asyncio.timeout(PATIENCE):
        while await database.fetchval("select count(*) from events where type = $1", event_type) < count:
            await asyncio.sleep(0.05)


async def test_path_of_an_event_matches_the_documentation(
    database: Any, sandbox: Any, traced: TracedFiles, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """For each of three events a real worker and event-ingest run only the listed files.

    Every file that an event passes must run for each event; a file that these use need not, as results are cached.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # It is always open for both: no reader sees an end instead of a line, and no writer waits for a reader.
    opened = os.open(gate, os.O_RDWR)
    request.addfinalizer(partial(os.close, opened))
    ready = event("agent.message", content="ready", content_length=5)
    sandbox.task("; ".join([ready, *(f"read go < {gate}; {CALL}" for _ in range(EVENTS)), f"read go < {gate}"]))
    sandbox.cold = True  # each program records its files from its start
    await sandbox.start(**traced.environment, SANDHERD_HEARTBEAT_INTERVAL="3600")
    await stored(database, "agent.message")
    worker, ingest = (architecture_paths.steps("an event", part) for part in ("Line to broker", "Broker to Postgres"))
    recordings = []
    for number in range(EVENTS):
        with traced.recording(ignoring=TIMERS) as recording:
            os.write(opened, b"\n")
            await stored(database, "agent.tool_use", number + 2)
            # Both continue after the row is visible: one acknowledges the message, the other one receives that.
            await passed(worker, recording.elsewhere)
            await passed(ingest, recording.here)
        recordings.append(recording)
    assert own(set.intersection(*(one.elsewhere() for one in recordings))) <= architecture_paths.files(worker)
    assert own(set.intersection(*(one.here() for one in recordings))) <= architecture_paths.files(ingest)


async def passed(steps: list[architecture_paths.Step], ran: Callable[[], set[str]]) -> None:
    """Wait until all files of these steps have run."""
    files = {step.file for step in steps}
    await eventually(lambda: files <= ran(), lambda: f"these run: {sorted(files - ran())}")


def event(event_type: str, **data: Any) -> str:
    """The shell command by which an agent publishes an event."""
    return f"echo '{json.dumps({'type': event_type, 'data': data})}' >&\"$SANDHERD_EVENTS_FD\""


# The second of its type: the harness itself publishes the first at the start of the program.
CALL: Final = event("agent.tool_use", tool="Bash", tool_use_id="t1", input={"command": "ls"})


def own(files: set[str]) -> set[str]:
    """The files that ran for the event."""
    return {file for file in files - TIMERS if not file.startswith(EVERYWHERE)}
