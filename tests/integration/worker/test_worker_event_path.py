"""The path of an event in docs/architecture.md, against the files that run while one event goes from agent to row."""

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
"""Run at intervals, or call a listener at each change of the spool, whatever is in it."""
EVENTS: Final = 3
"""What runs for only some of them does not run for an event, but beside it: on a busy machine, any timer may."""
EVERYWHERE: Final = ("libs/sandherd/telemetry/", "libs/sandherd/concurrency.py", "libs/sandherd/contracts/names.py")
"""Metrics, spans, cancellation and checks of names: used by almost every file, so the page does not list them."""


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
    """For each of three events, a real worker and event-ingest run no files but the listed ones.

    All files that an event passes run for each; a file that these use need not, as results are cached.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Open for both at all times: no reader gets an end instead of a line, and no writer waits for a reader.
    opened = os.open(gate, os.O_RDWR)
    request.addfinalizer(partial(os.close, opened))
    ready = event("agent.message", content="ready", content_length=5)
    sandbox.task("; ".join([ready, *(f"read go < {gate}; {CALL}" for _ in range(EVENTS)), f"read go < {gate}"]))
    sandbox.cold = True  # each program records which files it runs, from its start
    await sandbox.start(**traced.environment, SANDHERD_HEARTBEAT_INTERVAL="3600")
    await stored(database, "agent.message")
    worker, ingest = (architecture_paths.steps("an event", part) for part in ("Line to broker", "Broker to Postgres"))
    recordings = []
    for number in range(EVENTS):
        with traced.recording(ignoring=TIMERS) as recording:
            os.write(opened, b"\n")
            await stored(database, "agent.tool_use", number + 2)
            # Both work on after the row is visible: one acknowledges the message, the other one receives that.
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


# The second of its type: the first is the start of the program, by the harness itself.
CALL: Final = event("agent.tool_use", tool="Bash", tool_use_id="t1", input={"command": "ls"})


def own(files: set[str]) -> set[str]:
    """The files that ran for the event."""
    return {file for file in files - TIMERS if not file.startswith(EVERYWHERE)}
