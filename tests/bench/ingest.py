"""Ingest, beside an endpoint with one INSERT for each POST and beside Postgres alone: same rows, same machine.

Each side has its own database on one durable Postgres, its program in a separate process, and the publisher of the
events in another. Rates include the whole path: ours from the first publish until event-ingest has acknowledged
everything; the baseline's from the first POST to the last commit.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final
from uuid import uuid4

import aiohttp
import asyncpg
import psutil

from event_ingest.batch_statements import STORE
from event_ingest.batch_writer import write_new
from event_ingest.event_rows import EventBatch, columns
from event_ingest.ingest import CONSUMER
from event_ingest.migrator import migrate
from event_ingest.short_rows import short_rows
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.postgres import PostgresServer
from tests.bench.ingest_events import SANDBOXES, BenchEvent, make_events, read_moments, write_events
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder

ROOT: Final = Path(__file__).parent.parent.parent
OURS: Final = 40_000
POSTED: Final = 6_000
"""Fewer than ours: at the baseline's rate they take the same time."""
SECONDS: Final = 4.0
"""The duration of a steady rate."""
_WITHIN: Final = 120.0
_BATCH: Final = 2000


@dataclass
class Bench:
    """The broker and the Postgres of all runs, and a directory for their files."""

    directory: Path
    broker: Broker
    postgres: PostgresServer
    spent: float = 0.0
    """CPU seconds of event-ingest for each event of the last run."""

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["Bench"]:
        """Start both; they and their files are removed at the end."""
        directory = Path(tempfile.mkdtemp(prefix="bench-ingest-"))
        try:
            async with Broker(directory / "broker") as broker, PostgresServer(directory / "postgres") as postgres:
                for sandbox in SANDBOXES:
                    path = broker.credentials(Principal.WORKER, sandbox=sandbox)
                    shutil.copy(path, directory / f"{sandbox}.creds")
                yield cls(directory, broker, postgres)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def new_database(self) -> str:
        """Create a migrated, empty database."""
        name = f"bench_{uuid4().hex}"
        await self.postgres.create_database(name)
        connection = await asyncpg.connect(self.postgres.url(name))
        try:
            await migrate(connection)
        finally:
            await connection.close()
        return self.postgres.url(name)

    def file(self, name: str) -> Path:
        """The path of a file of a run."""
        return self.directory / f"{uuid4().hex}-{name}"

    # --- ours ------------------------------------------------------------------------------------------------------

    async def throughput(
        self, count: int = OURS, module: str = "event_ingest.main", variables: Mapping[str, str] | None = None
    ) -> float:
        """Events per second, from the first publish until all are committed and acknowledged, with one process."""
        begun, ended = await self._ours(count, rate=0, program=["-m", module], variables=variables)
        return count / (ended - min(begun.values()))

    async def throughput_into(self, url: str, first: int, count: int = OURS) -> float:
        """The throughput into a database that has events; the sequence numbers in each sandbox begin with `first`."""
        warm = len(SANDBOXES) * 40
        program = ["-m", "event_ingest.main"]
        async with self.broker.bus(Principal.EVENT_INGEST) as bus, running(program, self._environment(url)):
            await self._publish(make_events(warm, first), 0)
            await _all_acknowledged(bus)
            begun = await self._publish(make_events(count, first + 40), 0)
            return count / (await _all_acknowledged(bus) - min(begun.values()))

    async def latency(self, rate: float, seconds: float = SECONDS) -> Latency:
        """The latency from publish to commit at a steady rate."""
        moments = self.file("committed")
        program = ["-m", "tests.bench.timed_ingest", str(moments)]
        begun, _ = await self._ours(int(rate * seconds), rate, program)
        return _between(begun, read_moments(moments))

    async def _ours(
        self, count: int, rate: float, program: list[str], variables: Mapping[str, str] | None = None
    ) -> tuple[dict[str, float], float]:
        """Publish events to a running event-ingest.

        Returns when each was published, and when the last was acknowledged.
        """
        url = await self.new_database()
        surroundings = {**self._environment(url), **(variables or {})}
        async with self.broker.bus(Principal.EVENT_INGEST) as bus, running(program, surroundings) as process:
            await self._publish(make_events(len(SANDBOXES) * 40), 0)  # so that both sides are warm
            await _all_acknowledged(bus)
            first, spent = await _count(url), _cpu(process)
            async with asyncio.TaskGroup() as group:  # if the publisher fails, the wait below ends
                sent = group.create_task(self._publish(make_events(count, first=41), rate))
                await _until_stored(url, first + count)
                ended = await _all_acknowledged(bus)
            self.spent = (_cpu(process) - spent) / count
        return sent.result(), ended

    async def _publish(self, events: list[BenchEvent], rate: float) -> dict[str, float]:
        path, moments = self.file("events"), self.file("said")
        write_events(path, events)
        await _run(
            "tests.bench.ingest_publish", self.broker.url, str(self.directory), str(path), str(moments), str(rate)
        )
        return read_moments(moments)

    def _environment(self, url: str) -> dict[str, str]:
        settings = self.broker.settings(Principal.EVENT_INGEST)
        return {
            "NATS_URL": self.broker.url,
            "SANDHERD_CREDENTIALS": str(settings.credentials),
            "DATABASE_URL": url,
            "SANDHERD_LOG_LEVEL": "error",
        }

    # --- the baselines ---------------------------------------------------------------------------------------------

    async def endpoint_throughput(self, count: int = POSTED) -> float:
        """Events per second of one INSERT for each POST, over 32 connections."""
        begun, committed = await self._posted(count, rate=0)
        return count / (max(committed.values()) - min(begun.values()))

    async def endpoint_latency(self, rate: float, seconds: float = SECONDS) -> Latency:
        """The latency from POST to commit at a steady rate."""
        return _between(*await self._posted(int(rate * seconds), rate))

    async def _posted(self, count: int, rate: float) -> tuple[dict[str, float], dict[str, float]]:
        url, committed = await self.new_database(), self.file("committed")
        port = await free_port()
        program = ["-m", "tests.bench.ingest_endpoint", url, str(port), str(committed)]
        async with running(program, {}):
            where = f"http://127.0.0.1:{port}/events"
            await listening(where)
            await self._post(where, make_events(500), 0)
            begun = await self._post(where, make_events(count, first=41), rate)
        moments = read_moments(committed)
        return begun, {identifier: moments[identifier] for identifier in begun}

    async def _post(self, where: str, events: list[BenchEvent], rate: float) -> dict[str, float]:
        path, moments = self.file("events"), self.file("said")
        write_events(path, events)
        await _run("tests.bench.ingest_post", where, str(path), str(moments), str(rate))
        return read_moments(moments)

    async def postgres_alone(self, count: int = OURS) -> float:
        """Rows per second on one connection, batch after batch of prepared rows: by COPY or by one statement."""
        return max([await self._postgres_alone(count, copies) for copies in (True, False)])

    async def _postgres_alone(self, count: int, copies: bool) -> float:
        batches = [(batch, short_rows(batch.rows, batch.short)) for batch in batches_of(make_events(count))]
        connection = await asyncpg.connect(await self.new_database())
        try:
            begun = monotonic()
            for batch, rows in batches:
                if copies:
                    await write_new(connection, batch, rows)
                else:
                    await connection.fetchval(STORE, *columns(rows))
            return count / (monotonic() - begun)
        finally:
            await connection.close()


async def measure(recorder: Recorder) -> None:
    """Measure event-ingest beside an INSERT for each POST, and beside Postgres alone; then its latency at two rates."""
    async with Bench.open() as bench:
        for run in recorder.each("ingest.throughput"):
            posted, ours = await bench.endpoint_throughput(), await bench.throughput()
            recorder.add("ingest.throughput", ours, posted)
            recorder.begin("ingest.postgres_share", run)
            recorder.add("ingest.postgres_share", ours, await bench.postgres_alone())
        for pace in (200, 1000):
            for _ in recorder.each(f"ingest.latency_{pace}"):
                mine, other = await bench.latency(pace), await bench.endpoint_latency(pace)
                recorder.add(f"ingest.latency_{pace}", mine, other)


def _between(begun: dict[str, float], ended: dict[str, float]) -> Latency:
    return latency_of([ended[identifier] - moment for identifier, moment in begun.items()])


def batches_of(events: list[BenchEvent], size: int = _BATCH) -> list[EventBatch]:
    """The rows as event-ingest makes them, in its batches or in batches of another size."""
    batches = []
    now = datetime.now(UTC)
    for start in range(0, len(events), size):
        batch = EventBatch()
        for place, sent in enumerate(events[start : start + size]):
            batch.add(place, Delivery(sent.subject, sent.document, "EVENTS", start + place + 1, 1, now))
        batches.append(batch)
    return batches


async def _run(module: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *arguments, cwd=ROOT)
    if await asyncio.wait_for(process.wait(), _WITHIN):
        raise RuntimeError(f"{module} ended with status {process.returncode}")


@asynccontextmanager
async def running(program: list[str], environment: dict[str, str]) -> AsyncIterator[Process]:
    """Start a process that is stopped normally at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, *program, cwd=ROOT, env=os.environ | environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), _WITHIN)


async def _all_acknowledged(bus: Bus) -> float:
    """Wait until the broker has no pending event for event-ingest. Returns the time at which this was seen."""
    async with asyncio.timeout(_WITHIN):
        while True:
            info = await bus.js.consumer_info("EVENTS", CONSUMER)
            if not info.num_pending and not info.num_ack_pending:
                return monotonic()
            await asyncio.sleep(0.005)


async def _count(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select count(*) from events"))
    finally:
        await connection.close()


async def _until_stored(url: str, count: int) -> None:
    """Wait until these events are stored. It counts rarely, because counting costs what is measured."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(_WITHIN):
            while await connection.fetchval("select coalesce(sum(stored), 0)::int from sources") < count:
                await asyncio.sleep(0.02)
    finally:
        await connection.close()
    assert await _count(url) == count


def _cpu(process: Process) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


async def free_port() -> int:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def listening(url: str) -> None:
    async with asyncio.timeout(_WITHIN), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
