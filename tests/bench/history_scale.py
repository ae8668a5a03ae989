"""`make bench-history`: compares a large history with a small one, each written with COPY to its own database.

The events are those of `tests.bench.histories`, copied with other ids and distributed over ten days, the last of which
is today. Each sandbox has 5,000 events of one day, except the two that are compared, which have 10,000 each. As in a
herd, each earlier day has its index of words, and today has segments of it, which were created and merged one after the
other.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final
from uuid import UUID

import asyncpg

from event_ingest.batch_writer import store
from event_ingest.database import Database
from event_ingest.event_rows import COLUMNS, Row
from event_ingest.history_policy import RetentionPolicy
from event_ingest.history_retention import DropResult, try_drop
from event_ingest.partition_indexes import create_missing
from event_ingest.queries.audit import read_snapshot
from event_ingest.queries.comparison import compare_sandboxes
from event_ingest.queries.events import list_events
from event_ingest.queries.search import search_events
from event_ingest.queries.trajectory import read_trajectory
from event_ingest.schema import Schema, ensure_partitions, partition_name
from event_ingest.short_rows import short_row
from event_ingest.totals_recount import RECOUNT
from event_ingest.word_segment_indexes import create_segments, read_segments
from event_ingest.word_segments import MIN_EVENTS
from sandherd.contracts.requests import GetAudit, GetComparison, GetTrajectory, ListEvents, SearchEvents
from tests.bench.histories import SEARCHES, make_vocabulary, published_events
from tests.bench.ingest import OURS, Bench, batches_of
from tests.bench.ingest_events import PROJECT
from tests.bench.latency import latency_of

EACH: Final = 5000
COMPARED: Final = 10_000
"""Events of each of the first two sandboxes."""
DAYS: Final = 10
SAMPLES: Final = 100
TEMPLATES: Final = 2000
UNINDEXED: Final = 20_000
"""How many of today's events are in no segment: the maximum at 100 events/s before the next segment is created."""
STORED_AFTERWARDS: Final = 100_000
INGEST_RUNS: Final = 5
_COPIED: Final = 5000
_BUDGET: Final = 1_000_000
_DROP_BATCH: Final = 100
_DROP_PAUSE: Final = 0.2
_SIZE: Final = """
select sum(pg_total_relation_size(inhrelid))::bigint as disk, sum(pg_relation_size(inhrelid))::bigint as heap,
    sum(pg_indexes_size(inhrelid))::bigint as indexes, (select sum(size)::bigint from events) as own
from pg_inherits where inhparent = 'events'::regclass
"""
_PLACES: Final = (
    "select id from (select id, row_number() over (order by id) as place from {}) e where place % $1 = 0 order by id"
)
Ask = Callable[[int], Awaitable[Any]]


def rows_of(templates: list[Row], first: int, count: int, begun: datetime) -> Iterator[Row]:
    """Rows of sandboxes one after the other, each a template with another id, time, sandbox and sequence."""
    for place in range(first, first + count):
        sandbox, number = sandbox_of(place)
        template = templates[place % len(templates)]
        time = begun + timedelta(days=sandbox % DAYS, seconds=number * 8, microseconds=number)
        id_ = UUID(int=(int(time.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62) | place)
        entity, source = f"sbx-{sandbox}", f"/sandherd/sandbox/sbx-{sandbox}"
        document = _document(template, id_, number, time, entity)
        yield short_row(
            (id_, place + 1, number, time, PROJECT, entity, template[6], source, None, entity, document, len(document))
        )


def sandbox_of(place: int) -> tuple[int, int]:
    """The number of the sandbox of an event, and the event's number in it. Sandboxes follow one after the other."""
    if place < 2 * COMPARED:
        return place // COMPARED, place % COMPARED + 1
    after = place - 2 * COMPARED
    return 2 + after // EACH, after % EACH + 1


def _document(template: Row, id_: UUID, number: int, time: datetime, entity: str) -> str:
    """The template's document with these values."""
    event = json.loads(template[10])
    moment = time.isoformat().replace("+00:00", "Z")
    event |= {"id": str(id_), "source": f"/sandherd/sandbox/{entity}", "subject": entity, "time": moment}
    event |= {"sequence": number, "sandboxid": entity}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


async def build(connection: Any, events: int, vocabulary: list[str]) -> None:
    """Fill an empty database."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begun = today - timedelta(days=DAYS - 1)
    for day in (begun + timedelta(days=1), today):
        await ensure_partitions(connection, day)
    templates = [row for batch in batches_of(list(published_events(vocabulary, TEMPLATES))) for row in batch.rows]
    names = [name for name, _ in COLUMNS]
    for first in range(0, events, _COPIED):
        rows = list(rows_of(templates, first, min(_COPIED, events - first), begun))
        await connection.copy_records_to_table("events", records=rows, columns=names)
    for sandbox in range(sandbox_of(events - 1)[0] + 1):
        await connection.execute(RECOUNT, PROJECT, f"sbx-{sandbox}")
    await create_missing(connection, datetime.now(UTC))
    await segment_today(connection, today)
    await connection.execute("vacuum analyze")


async def segment_today(connection: Any, today: datetime) -> None:
    """Create the segments of today as if its events were stored one after the other; the last events are in none."""
    name = partition_name(today.date())
    places = await connection.fetch(_PLACES.format(name), MIN_EVENTS)
    for row in places[: -UNINDEXED // MIN_EVENTS]:
        await create_segments(connection, datetime.fromtimestamp((row["id"].int >> 80) / 1000 + 1, UTC))


def questions(connection: Any, database: Database, vocabulary: list[str], sandboxes: int) -> dict[str, Ask]:
    """The measured requests; a request depends on the number of its sample."""
    draw = random.Random(1)

    def sandbox() -> str:
        return f"sbx-{draw.randrange(sandboxes)}"

    def search(number: int) -> Awaitable[Any]:
        word = vocabulary[SEARCHES[number % len(SEARCHES)]]
        return search_events(connection, SearchEvents(text=word), PROJECT, _BUDGET)

    return {
        "trajectory": lambda _: read_trajectory(connection, GetTrajectory(sandbox=sandbox()), PROJECT, _BUDGET),
        "events": lambda _: list_events(
            connection, ListEvents(sandbox=sandbox(), types=["agent.tool_use"]), PROJECT, _BUDGET
        ),
        "audit_sandbox": lambda _: read_snapshot(database, GetAudit(sandbox=sandbox()), PROJECT),
        "audit_project": lambda _: read_snapshot(database, GetAudit(), PROJECT),
        "search": search,
        "comparison": lambda _: compare_sandboxes(
            connection, GetComparison(first="sbx-0", second="sbx-1"), PROJECT, _BUDGET
        ),
    }


async def measure(bench: Bench, events: int, samples: int) -> dict[str, float]:
    """Measure the p99 of each request in ms, the events stored per second, and the bytes."""
    vocabulary, found = make_vocabulary(), {}
    url = await bench.new_database()
    connection = await asyncpg.connect(url, server_settings={"max_parallel_workers_per_gather": "0", "jit": "off"})
    async with _opened(url) as database:
        began = perf_counter()
        await build(connection, events, vocabulary)
        found["built_s"] = perf_counter() - began
        found["segments"] = len((await read_segments(connection)).valid)
        sizes: Any = await connection.fetchrow(_SIZE)
        found |= {name: float(value) for name, value in sizes.items()}
        found |= {"events": events, "bytes_ratio": found["disk"] / found["own"]}
        for name, ask in questions(connection, database, vocabulary, sandbox_of(events - 1)[0]).items():
            latency = latency_of([await _seconds(ask, number) for number in range(samples)])
            found |= {f"{name}_p50_ms": latency.p50, f"{name}_p99_ms": latency.p99}
        batches = batches_of(list(published_events(vocabulary, STORED_AFTERWARDS)))
        began = perf_counter()
        for batch in batches:
            await store(database, batch)
        found["stored_per_s"] = STORED_AFTERWARDS / (perf_counter() - began)
        found |= await measure_drop(database, connection, vocabulary)
        await connection.close()
    return found | await measure_ingest(bench, url)


async def measure_ingest(bench: Bench, url: str) -> dict[str, float]:
    """Events per second from publishing to the acknowledgement by one event-ingest; beside it, into an empty database.

    Both are medians of alternating runs; also returns the median of their ratios.
    """
    runs = []
    for number in range(INGEST_RUNS):
        first = 1 + number * OURS
        empty_url = await bench.new_database()
        runs.append([await bench.throughput_into(one, first) for one in (empty_url, url)])
    empty, full = (median(values) for values in zip(*runs, strict=True))
    share = median(one / other for other, one in runs)
    return {"ingest_empty_per_s": empty, "ingest_per_s": full, "ingest_share": share}


async def measure_drop(database: Database, connection: Any, vocabulary: list[str]) -> dict[str, float]:
    """The slowest batch in ms, before the oldest day is dropped and while it is dropped."""
    batches = batches_of(list(published_events(vocabulary, 2 * STORED_AFTERWARDS)), _DROP_BATCH)
    half = len(batches) // 2
    before = [await _seconds(lambda number: store(database, batches[number]), number) for number in range(half)]
    oldest = (datetime.now(UTC) - timedelta(days=DAYS - 1)).date()
    later = datetime.now(UTC) + timedelta(days=30)  # than the notice after a migration
    dropping = asyncio.create_task(_drop(connection, oldest, later))
    meanwhile = []
    for number in range(half, len(batches)):
        meanwhile.append(await _seconds(lambda number: store(database, batches[number]), number))
        if dropping.done():
            break
    await dropping
    return {"batch_max_ms": max(before) * 1000, "batch_max_beside_drop_ms": max(meanwhile) * 1000}


async def _drop(connection: Any, day: date, now: datetime) -> None:
    while await try_drop(connection, day, RetentionPolicy(1), now) is not DropResult.DROPPED:
        await asyncio.sleep(_DROP_PAUSE)


@asynccontextmanager
async def _opened(url: str) -> Any:
    database = Database(url, Schema(lambda: datetime.now(UTC)).prepare)
    checks = asyncio.create_task(database.run_checks())
    try:
        await database.wait_available(60)
        yield database
    finally:
        checks.cancel()
        await asyncio.gather(checks, return_exceptions=True)


async def _seconds(ask: Ask, number: int) -> float:
    began = perf_counter()
    await ask(number)
    return perf_counter() - began


async def compare(sizes: tuple[int, int], samples: int) -> list[dict[str, float]]:
    """Compare both histories, one after the other, on one server."""
    async with Bench.open() as bench:
        return [await measure(bench, events, samples) for events in sizes]


def main() -> None:
    """The program: prints a table, and writes JSON."""
    parser = argparse.ArgumentParser("bench-history", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000, help="of the large history [10000000]")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each question [100]")
    parser.add_argument("--small", type=int, default=100_000, help="events of the small history [100000]")
    parser.add_argument("--result", type=Path, default=Path("build/bench-history.json"))
    given = parser.parse_args()
    small, large = asyncio.run(compare((given.small, given.events), given.samples))
    given.result.write_text(json.dumps({given.small: small, given.events: large}, indent=2) + "\n")
    for name, value in large.items():
        ratio = f"{value / small[name]:8.2f}" if small[name] else ""
        sys.stdout.write(f"{name:20} {small[name]:16.2f} {value:16.2f} {ratio}\n")


if __name__ == "__main__":
    main()
