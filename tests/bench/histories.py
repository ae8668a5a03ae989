"""Requests about a history of 200,000 events in 20 sandboxes, and the cost of a day's full-text index for each event.

Texts are made of 20,000 words whose frequencies are like those of a language: the searches are for frequent words and
for rare ones.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any, Final

import asyncpg

from event_ingest.batch_statements import STORE
from event_ingest.event_rows import columns
from event_ingest.partition_indexes import create_missing
from event_ingest.queries.comparison import compare_sandboxes
from event_ingest.queries.search import search_events
from event_ingest.queries.statistics import count_statistics, show_overview
from event_ingest.schema import ensure_partitions
from event_ingest.search_texts import term_index
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests import GetComparison, GetOverview, GetStatistics, SearchEvents
from sandherd.contracts.subjects import event_subject
from tests.bench.ingest import Bench, batches_of
from tests.bench.ingest_events import PROJECT, BenchEvent
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder

EVENTS_STORED: Final = 200_000
SANDBOXES: Final = 20
SAMPLES: Final = 10
SEARCHES: Final = (1, 2, 10, 30, 100, 300, 1000, 3000, 10_000, 15_000)
"""The ranks of the words that are searched for, the most frequent first."""
_DAYS: Final = "select relname from pg_class where relname ~ '^events_[0-9]{8}$'"
_BUDGET: Final = 1_000_000
_ONE_CORE: Final = {"max_parallel_workers_per_gather": "0", "jit": "off"}


async def measure(recorder: Recorder) -> None:
    """Measure the queries themselves, without the broker, and the cost of the index."""
    vocabulary = make_vocabulary()
    async with Bench.open() as bench, _stored(bench, vocabulary, EVENTS_STORED) as connection:
        for name, ask in _questions(connection, vocabulary).items():
            for _ in recorder.each(f"history.{name}"):
                recorder.add(f"history.{name}", await _latency(ask))
        for _ in recorder.each("history.words"):
            recorder.add("history.words", await _index(connection))
        for _ in recorder.each("history.search_indexed"):
            recorder.add("history.search_indexed", await _latency(_questions(connection, vocabulary)["search"]))


def _questions(connection: Any, vocabulary: list[str]) -> dict[str, Callable[[int], Awaitable[Any]]]:
    comparison, by_task = GetComparison(first="sbx-0", second="sbx-1"), GetStatistics(by="task")
    return {
        "comparison": lambda _: compare_sandboxes(connection, comparison, PROJECT, _BUDGET),
        "search": lambda number: search_events(
            connection, SearchEvents(text=vocabulary[SEARCHES[number % len(SEARCHES)]]), PROJECT, _BUDGET
        ),
        "statistics": lambda _: count_statistics(connection, by_task, PROJECT, _BUDGET),
        "overview": lambda _: show_overview(connection, GetOverview(), PROJECT, _BUDGET),
    }


async def _latency(ask: Callable[[int], Awaitable[Any]]) -> Latency:
    seconds = []
    for number in range(SAMPLES):
        began = perf_counter()
        await ask(number)
        seconds.append(perf_counter() - began)
    return latency_of(seconds)


async def _index(connection: Any) -> float:
    """Microseconds for each event to create the index of words of a day that has ended."""
    for day in [row["relname"] for row in await connection.fetch(_DAYS)]:
        await connection.execute(f"drop index if exists {term_index(day)}")
    began = perf_counter()
    await create_missing(connection, datetime.now(UTC) + timedelta(days=2))
    return (perf_counter() - began) / EVENTS_STORED * 1e6


@asynccontextmanager
async def _stored(bench: Bench, vocabulary: list[str], count: int) -> Any:
    """Connect to a database with this number of events."""
    connection = await asyncpg.connect(await bench.new_database(), server_settings=_ONE_CORE)
    try:
        await ensure_partitions(connection, datetime.now(UTC))
        for batch in batches_of(list(published_events(vocabulary, count))):
            await connection.fetchval(STORE, *columns(batch.rows))
        yield connection
    finally:
        await connection.close()


def make_vocabulary() -> list[str]:
    """Make up words, the most frequent first."""
    draw = random.Random(16)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(20_000)]


def published_events(vocabulary: list[str], count: int) -> Iterator[BenchEvent]:
    """Make `count` events, of all sandboxes in turn."""
    draw = random.Random(count)

    def text(size: int) -> str:
        return " ".join(vocabulary[min(int(draw.paretovariate(0.6)), len(vocabulary) - 1)] for _ in range(size))

    for place in range(count):
        sandbox, number = f"sbx-{place % SANDBOXES}", place // SANDBOXES + 1
        name, data = _event(text, draw, number)
        data["turn"] = number // 20 + 1
        event = wrap(
            EVENTS[name](**data),
            name,
            source=f"/sandherd/sandbox/{sandbox}",
            sequence=number,
            project=PROJECT,
            subject=sandbox,
            time=datetime.now(UTC),
            sandboxid=sandbox,
        )
        yield BenchEvent(sandbox, str(event.id), event_subject(PROJECT, sandbox, name), event.to_json())


def _event(text: Callable[[int], str], draw: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    """Make one event: of ten events three are tool calls and three their results."""
    kind, call = number % 10, f"call-{number // 3}"
    if kind in {1, 4, 7}:
        return "agent.tool_use", {"tool": "Bash", "tool_use_id": call, "input": {"command": text(12)}}
    if kind in {2, 5, 8}:
        return "agent.tool_result", {"tool_use_id": call, "result": text(60)}
    if kind == 3:
        return "agent.message", {"content": text(40), "content_length": 240}
    if kind == 6:
        path = f"src/{draw.randint(1, 200)}.py"
        return "agent.file_edited", {"file_path": path, "change_type": "modified", "full_diff": text(80)}
    if kind == 9:
        return "agent.usage", {"model": "m", "input_tokens": 100, "cost_micro_usd": 50}
    return "agent.turn_started", {}
