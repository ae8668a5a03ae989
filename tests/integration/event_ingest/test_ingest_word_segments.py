"""Segments of a day's words, in a real database: searches find the same with them, and events are stored meanwhile."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from event_ingest.archive.directory_store import DirectoryStore
from event_ingest.archive.restore_queue import HistoryRestores
from event_ingest.history_policy import RetentionPolicy
from event_ingest.partition_indexes import PartitionIndexes, create_missing, has_term_index
from event_ingest.queries import search
from event_ingest.queries.search import search_events
from event_ingest.queries.verification import verify_tables
from event_ingest.schema import bounds, partition_name
from event_ingest.word_segment_indexes import SETTLED_MS, WordSegments, create_segments, read_segments
from event_ingest.word_segments import WordSegment, id_at
from sandherd.bus.consumers.consumer import DONE
from sandherd.contracts.requests import SearchEvents, VerifyHistory
from tests.integration.event_ingest.old_days import OldDays, opened_old_days
from tests.integration.event_ingest.test_ingest_search import event
from tests.integration.event_ingest.test_ingest_statistics import ask
from tests.patience import PATIENCE
from tests.polling import eventually

NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
TODAY = NOON.date()
PART = partition_name(TODAY)
WORDS = ("common", "frequent", "rare", "single")
_VERSION_7 = 7 << 76 | 2 << 62


def id_of(moment: datetime, number: int) -> UUID:
    return UUID(int=id_at(int(moment.timestamp() * 1000)).int | _VERSION_7 | number)


class Day:
    """The events of today, and their texts."""

    def __init__(self, history: Any, script: Any, seed: int = 0) -> None:
        self.history = history
        self.draw = random.Random(seed)
        self._script = script
        self._number = 0

    async def store(self, count: int, begun: datetime, seconds: float) -> None:
        """Store events with ids of an interval, in any order; a quarter has no words, and some only escaped ones."""
        published = []
        for _ in range(count):
            self._number += 1
            moment = begun + timedelta(seconds=self.draw.uniform(0, seconds))
            one = self._publish()
            published.append(one.model_copy(update={"id": id_of(moment, self._number)}))
        outcomes = await self.history.deliver(published)
        assert [one for one in outcomes if one != DONE] == []

    def _publish(self) -> Any:
        if self.draw.random() < 0.25:
            return self._script.heartbeat("sbx-1")
        likely = (0.9, 0.3, 0.03, 0.01)
        words = [word for word, share in zip(WORDS, likely, strict=True) if self.draw.random() < share]
        return event(self._script, self.draw.choice(["agent.message", "agent.tool_result"]), " ".join(["x", *words]))


async def pages(history: Any, text: str, limit: int = 7) -> list[str]:
    """The ids of all hits, in pages."""
    question, ids = SearchEvents(text=text, limit=limit), []
    while True:
        page = await ask(history, search_events, question)
        ids += [hit.id for hit in page.hits]
        if page.next_cursor is None:
            return ids
        question = question.model_copy(update={"cursor": page.next_cursor})


async def all_hits(history: Any) -> dict[str, list[str]]:
    return {text: await pages(history, text, 50) for text in (*WORDS, "common -frequent", '"x common" or single')}


async def segments_of(connection: Any) -> list[WordSegment]:
    return (await read_segments(connection)).valid


async def drop_all(connection: Any) -> None:
    for one in await segments_of(connection):
        await connection.execute(f"drop index {one.name}")


def random_segment(draw: random.Random, begun: datetime, seconds: int) -> WordSegment:
    first, end = sorted(draw.sample(range(seconds), 2))
    at = [id_at(int((begun + timedelta(seconds=one)).timestamp() * 1000)) for one in (first, end)]
    return WordSegment(PART, at[0], at[1], draw.randrange(10**6))


@pytest.mark.parametrize("seed", range(6))
async def test_searches_find_the_same_with_any_segments(
    history: Any, script: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random ranges with gaps, overlaps, invalid indexes and late events, the hits are those of a scan, in order.

    This also holds if segments are created, merged and dropped between two pages.
    """
    day = Day(history, script, seed)
    monkeypatch.setattr(search, "PORTION", day.draw.choice([3, 20, 5000]))
    await day.store(150, NOON, 600)
    async with history.database.maintaining() as connection:
        for _ in range(day.draw.randrange(1, 6)):
            await connection.execute(random_segment(day.draw, NOON, 600).statement)
        own = await segments_of(connection)
        if len(own) > 2:
            await connection.execute(
                f"update pg_index set indisvalid = false where indexrelid = '{own[0].name}'::regclass"
            )
        await day.store(50, NOON, 600)
        found = await all_hits(history)
        paged = await _pages_of_changing_segments(history, connection, day.draw)
        await drop_all(connection)
        await connection.execute(f"drop index if exists {own[0].name}")
        assert found == await all_hits(history)
        assert paged == found["common"]
        assert len(found["common"]) > 100


async def _pages_of_changing_segments(history: Any, connection: Any, draw: random.Random) -> list[str]:
    question, ids = SearchEvents(text="common", limit=9), []
    while True:
        page = await ask(history, search_events, question)
        ids += [hit.id for hit in page.hits]
        if page.next_cursor is None:
            return ids
        own = await segments_of(connection)
        if own and draw.random() < 0.5:
            await connection.execute(f"drop index concurrently {draw.choice(own).name}")
        else:
            await create_segments(connection, NOON + timedelta(hours=draw.choice([1, 2])), minimum=1)
        question = question.model_copy(update={"cursor": page.next_cursor})


async def nothing() -> None:
    """Do nothing before the first statement."""


class Explained:
    """A connection that also stores the plans of queries of events, and may do something before the first."""

    def __init__(self, connection: Any, before: Callable[[], Awaitable[None]] = nothing) -> None:
        self._connection = connection
        self._before = before
        self.plans: list[str] = []
        self.statements: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(statement: str, *values: Any) -> Any:
            if "event_words" in statement:
                before, self._before = self._before, nothing
                await before()
                plan = await self._connection.fetchval(f"explain (format json) {statement}", *values)
                self.plans.append(json.dumps(json.loads(plan)))
                self.statements.append(statement)
            return await getattr(self._connection, name)(statement, *values)

        return call


async def test_each_segment_is_read_by_its_index(history: Any, script: Any) -> None:
    """Each segment is read by a bitmap index scan, with and without statistics; only other events are scanned."""
    day = Day(history, script)
    async with history.database.maintaining() as connection:
        for place in range(3):
            await day.store(300, NOON + timedelta(minutes=10 * place), 500)
            segment = WordSegment(
                PART,
                bounds(TODAY)[0] if not place else id_of_minute(10 * place),
                id_of_minute(10 * place + 10),
                300,
            )
            await connection.execute(segment.statement)
        await day.store(20, NOON + timedelta(minutes=40), 100)
        own = await segments_of(connection)
        for _ in range(2):
            explained: Any = Explained(connection)
            await search_events(explained, SearchEvents(text="single rare", limit=50), "default", 1_000_000)
            plans = [plan for plan in explained.plans if PART in plan]
            for one in own:
                [plan] = [plan for plan in plans if one.name in plan]
                assert "Bitmap Index Scan" in plan
                assert "Seq Scan" not in plan
                # They are also literals: a plan that Postgres reuses for any values could use no segment.
                assert any(one.condition in statement for statement in explained.statements)
            assert len(plans) == len(own) + 1
            await connection.execute(f"analyze {PART}")


async def test_segments_that_are_merged_while_a_search_runs(history: Any, script: Any) -> None:
    """A search that has read the names before a merge uses the replacing index, and finds the same."""
    day = Day(history, script)
    await day.store(200, NOON, 240)
    async with history.database.maintaining() as connection, history.database.maintaining() as searching:
        for place in range(3):
            ids = bounds(TODAY)[0] if not place else id_of_minute(place)
            await connection.execute(WordSegment(PART, ids, id_of_minute(place + 1), 60).statement)
        expected = await pages(history, "common", 50)

        async def replace() -> None:
            await create_segments(connection, NOON + timedelta(hours=1), minimum=1)
            assert len(await segments_of(connection)) == 1
            await connection.execute(f"analyze {PART}")  # otherwise these few events are read without the index

        await day.store(1, NOON + timedelta(minutes=6), 1)
        explained: Any = Explained(searching, replace)
        found = await search_events(explained, SearchEvents(text="common -absent", limit=200), "default", 1_000_000)
        assert [hit.id for hit in found.hits][-len(expected) :] == expected
        [merged] = await segments_of(connection)
        assert sum(merged.name in plan for plan in explained.plans) == 3


def id_of_minute(minute: int) -> UUID:
    return id_at(int((NOON + timedelta(minutes=minute)).timestamp() * 1000))


async def test_segments_follow_the_events_and_end_with_the_day(history: Any, script: Any) -> None:
    """Segments are created for enough new events up to a minute ago, merged, and dropped with the day's index.

    A clock that is ahead does not end the range in which events are stored.
    """
    day = Day(history, script)
    async with history.database.maintaining() as connection:
        await day.store(1, NOON + timedelta(hours=11), 1)
        for place, segments in enumerate((0, 1, 2, 3, 1)):
            begun = NOON + timedelta(minutes=5 * place)
            await day.store(20, begun, 60)
            await create_segments(connection, begun + timedelta(minutes=2), minimum=20)
            assert len(await segments_of(connection)) == segments
        [one] = await segments_of(connection)
        assert one.first == bounds(TODAY)[0]
        newest = await connection.fetchval(
            "select id from events where id < $1 order by id desc limit 1", id_of_minute(300)
        )
        assert one.end == id_at((newest.int >> 80) - SETTLED_MS)
        before = await all_hits(history)
        await create_segments(connection, NOON + timedelta(hours=12.5), minimum=1)  # events of the day may be late
        assert len(await segments_of(connection)) == 2
        later = NOON + timedelta(hours=14)
        await create_segments(connection, later, minimum=1)
        assert len(await segments_of(connection)) == 2
        await create_missing(connection, later)
        assert await has_term_index(connection, PART)
        await create_segments(connection, later, minimum=1)
        assert (await read_segments(connection)).valid == []
        assert await all_hits(history) == before


@asynccontextmanager
async def open_transaction(history: Any) -> AsyncIterator[Any]:
    """A transaction that has written into today's partition: an index is created after its end."""
    async with history.database.maintaining() as writer:
        await writer.execute("begin")
        await writer.execute(f"update {PART} set stored_at = stored_at")
        yield writer


_WAITS = (
    "select count(*) > 0 from pg_stat_activity "
    "where datname = current_database() and query like 'create index concurrently%' and wait_event = 'virtualxid'"
)


async def test_events_are_stored_while_a_segment_is_created_and_a_killed_one_is_repaired(
    history: Any, script: Any
) -> None:
    """Batches and searches do not wait for a segment; what a killed backend leaves is dropped, and created again."""
    day = Day(history, script)
    await day.store(100, NOON, 60)
    await day.store(1, NOON + timedelta(minutes=5), 1)
    now = NOON + timedelta(minutes=6)
    async with history.database.maintaining() as connection, history.database.maintaining() as victim:
        async with open_transaction(history):
            creation = asyncio.create_task(create_segments(victim, now, minimum=10))
            await eventually(lambda: connection.fetchval(_WAITS), "the creation waits for the transaction", PATIENCE)
            await day.store(30, NOON, 360)
            found = await all_hits(history)
            await connection.execute("select pg_terminate_backend($1, 10000)", victim.get_server_pid())
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await creation
        [left] = (await read_segments(connection)).invalid
        assert await segments_of(connection) == []
        assert await all_hits(history) == found
        await create_segments(connection, now, minimum=10)
        assert (await read_segments(connection)).invalid == []
        [made] = await segments_of(connection)
        assert (made.first, made.events > left.events) == (left.first, True)
        assert await all_hits(history) == found


async def test_one_replica_creates_them_at_a_time(history: Any, script: Any) -> None:
    """Only one replica creates segments at a time; the other one still creates indexes of earlier days."""
    day, now = Day(history, script), NOON + timedelta(minutes=6)
    await day.store(30, NOON, 60)
    await day.store(1, NOON + timedelta(minutes=5), 1)
    first, second = WordSegments(history.database, 10), WordSegments(history.database, 10)
    async with history.database.locked(WordSegments.lock) as alone:
        assert alone
        assert not await second.create(now)
        assert await PartitionIndexes(history.database).create(now)
    done = await asyncio.gather(first.create(now), second.create(now))
    assert any(done)
    async with history.database.maintaining() as connection:
        assert len(await segments_of(connection)) == 1


async def segment_of(connection: Any, day: date) -> None:
    """A segment of the first half of a day, as it is after the day's end."""
    first, end = bounds(day)
    half = id_at(((first.int + end.int) // 2) >> 80)
    await connection.execute(WordSegment(partition_name(day), first, half, 5).statement)


@pytest.fixture
async def days(history: Any) -> AsyncIterator[OldDays]:
    async with opened_old_days(history) as found:
        yield found


async def test_days_with_segments_are_reduced_archived_restored_and_dropped(
    days: OldDays, script: Any, tmp_path: Path
) -> None:
    """A replaced partition has no segments, and gets its index of words later; verification finds no difference."""
    published = [*script.life("task-1", "sbx-1"), *[event(script, "agent.message", f"common {n}") for n in range(5)]]
    await days.store([*published, script.heartbeat("sbx-1")], days.old)
    await segment_of(days.connection, days.old)
    found = await pages(days.history, "common")
    assert len(found) == 5
    archive, policy = DirectoryStore(tmp_path), RetentionPolicy(0, {}, {"agent.heartbeat": 1})
    await days.reduce(policy, archive)
    assert await segments_of(days.connection) == []
    assert await pages(days.history, "common") == found
    async with days.history.database.reading(heavy=True) as connection:
        verified = await verify_tables(connection, VerifyHistory(), "default", 1_000_000)
    assert (verified.incomplete, verified.differences) == (0, [])
    await segment_of(days.connection, days.old)
    await days.run(RetentionPolicy(90), archive)
    assert not await days.has(days.old)
    assert await segments_of(days.connection) == []
    request = "insert into history_restores (day, project, until) values ($1, '', now() + interval '7 days')"
    await days.connection.execute(request, days.old)
    await HistoryRestores(days.history.database, archive).run_once(days.connection)
    assert await pages(days.history, "common") == found
    await segment_of(days.connection, days.old)
    await create_missing(days.connection, days.now)
    await create_segments(days.connection, days.now)
    assert await segments_of(days.connection) == []
    assert await pages(days.history, "common") == found
