"""The latency of one project's requests while another project floods event-ingest, beside that without a flood.

Each project has its own credential; event-ingest, the flood and the measuring client are separate processes. The noisy
project has 40,000 events in eight sandboxes whose first numbers are missing, so that `audit` looks for gaps.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Final

import asyncpg

from event_ingest.batch_statements import STORE
from event_ingest.event_rows import columns
from sandherd.bus.connection import Bus
from sandherd.contracts.requests import GetAudit, GetTrajectory, ListEvents, Request
from sandherd.contracts.subjects import Principal, request_subject
from tests.bench.ingest import ROOT, Bench, batches_of, running
from tests.bench.ingest_events import PROJECT, SANDBOXES, BenchEvent, make_events
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder

EVENTS: Final = 40_000
QUIET: Final = "beta"
FLOODS: Final[Mapping[str, tuple[Request[Any], int]]] = {
    "events": (ListEvents(limit=1000), 1000),
    "audit": (GetAudit(), 300),
    "trajectory": (GetTrajectory(sandbox=SANDBOXES[0], limit=1000), 200),
}
"""The request of the noisy project in each flood, and how often it is sent."""
SAMPLES: Final = 100


async def measure(recorder: Recorder) -> None:
    """Measure the quiet project's latency during each flood, beside its latency without other requests."""
    async with Bench.open() as bench, request_loop(bench) as ask:
        for name, (request, count) in FLOODS.items():
            for _ in recorder.each(f"requests.beside_{name}"):
                idle = latency_of([await ask() for _ in range(SAMPLES)])
                recorder.add(f"requests.beside_{name}", await during(bench, ask, request, count), idle)


@asynccontextmanager
async def request_loop(bench: Bench) -> AsyncIterator[Callable[[], Any]]:
    """Run event-ingest with both histories. Yields a function that times one request of the quiet project."""
    url = await bench.new_database()
    await _store(url, [*make_events(EVENTS, first=41), *_of_the_quiet_one()])
    environment = bench._environment(url)
    async with (
        running(["-m", "event_ingest.main"], environment),
        bench.broker.bus(Principal.CLIENT, project=QUIET) as bus,
    ):
        async with asyncio.timeout(60):
            while not await _is_answered(bus):
                await asyncio.sleep(0.1)
        yield lambda: _timed(bus)


async def during(bench: Bench, ask: Callable[[], Any], request: Request[Any], count: int) -> Latency:
    """Measure the quiet project's latency from the flood's start to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.request_flood"),
        *(bench.broker.url, str(bench.broker.credentials(Principal.CLIENT, project=PROJECT))),
        *(_inbox(bench), request_subject(request.type, PROJECT), request.model_dump_json(exclude_none=True)),
        str(count),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    took = []
    ended = asyncio.create_task(process.communicate())
    while not ended.done():
        took.append(await ask())
        await asyncio.sleep(0.01)
    print(request.type, (await ended)[0].decode().strip(), file=sys.stderr)
    return latency_of(took)


def _inbox(bench: Bench) -> str:
    from sandherd.client.context import holder

    return holder(bench.broker.credentials(Principal.CLIENT, project=PROJECT)).inbox


async def _timed(bus: Bus) -> float:
    begun = perf_counter()
    await bus.ask(ListEvents(limit=50), QUIET, timeout=60)
    return perf_counter() - begun


async def _is_answered(bus: Bus) -> bool:
    try:
        await bus.ask(ListEvents(limit=1), QUIET)
    except Exception:  # noqa: BLE001  # not there yet, whatever the error
        return False
    return True


def _of_the_quiet_one() -> list[BenchEvent]:
    events = make_events(400, first=1)
    mine = f'"project":"{QUIET}"'.encode()
    found = [
        BenchEvent(one.sandbox, one.id, one.subject.replace(f".{PROJECT}.", f".{QUIET}.", 1),
             one.document.replace(f'"project":"{PROJECT}"'.encode(), mine))
        for one in events
    ]  # fmt: skip
    assert mine in found[0].document
    return found


async def _store(url: str, events: list[BenchEvent]) -> None:
    connection = await asyncpg.connect(url)
    try:
        for batch in batches_of(events):
            await connection.fetchval(STORE, *columns(batch.rows))
        await connection.execute("analyze")
    finally:
        await connection.close()
