"""Segments and other indexes of a partition are created without ending each other, with pauses between segments."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from event_ingest import word_segment_indexes
from event_ingest.partition_indexes import create_missing, term_index_statement, unpacked_indexes
from event_ingest.schema import bounds, partition_name
from event_ingest.word_segment_indexes import WordSegments, create_segments, read_segments
from event_ingest.word_segments import WordSegment, id_at
from tests.integration.event_ingest.old_days import opened_old_days
from tests.integration.event_ingest.test_ingest_search import event
from tests.integration.event_ingest.test_ingest_word_segments import NOON, PART, TODAY, Day, id_of_minute, pages
from tests.patience import PATIENCE
from tests.polling import eventually

_WAITS = """
select count(*) > 0 from pg_stat_activity
where datname = current_database() and query ilike $1 || '%' and wait_event = $2
"""


@asynccontextmanager
async def waiting(history: Any, partition: str, work: Any, statement: str) -> AsyncIterator["asyncio.Task[None]"]:
    """The work, whose statement waits until the end for a transaction that has written into the partition."""
    async with history.database.maintaining() as writer, history.database.maintaining() as watching:
        await writer.execute("begin")
        await writer.execute(f"update {partition} set stored_at = stored_at")
        task = asyncio.create_task(work)
        await eventually(lambda: watching.fetchval(_WAITS, statement, "virtualxid"), f"{statement} waits")
        yield task
        await writer.execute("rollback")


async def at_rest(history: Any, task: "asyncio.Task[None]") -> None:
    """Wait until the task has ended, or waits for the lock of a partition."""
    async with history.database.maintaining() as watching:
        await eventually(
            lambda: _ended(task) or watching.fetchval(_WAITS, "%index concurrently", "relation"), "it ends or waits"
        )


def _ended(task: "asyncio.Task[None]") -> Any:
    return task.done()


async def test_day_is_packed_while_its_segments_are_of_no_use(history: Any, script: Any) -> None:
    """Segments of a day do not end its packing; the next check drops those that are not needed."""
    async with (
        opened_old_days(history) as days,
        history.database.maintaining() as packing,
        history.database.maintaining() as dropping,
    ):
        await days.store([event(script, "agent.message", f"common {n}") for n in range(5)], days.old)
        part, (first, end) = partition_name(days.old), bounds(days.old)
        half = id_at(((first.int + end.int) // 2) >> 80)
        await days.connection.execute(WordSegment(part, first, half, 5).statement)
        await days.connection.execute(term_index_statement(part, concurrently=True))
        async with waiting(history, part, create_missing(packing, days.now), "reindex index concurrently") as packed:
            dropped = asyncio.create_task(create_segments(dropping, days.now))
            await at_rest(history, dropped)
        async with asyncio.timeout(PATIENCE):
            await packed
            await dropped
        assert await unpacked_indexes(packing, days.now) == []
        await create_segments(dropping, days.now)
        assert await read_segments(dropping) == word_segment_indexes.StoredSegments([], [])
        assert len(await pages(history, "common")) == 5


@pytest.mark.parametrize("other", ["index of the day", "segment of another replica"])
async def test_index_of_a_day_is_completed_before_its_next_segment(history: Any, script: Any, other: str) -> None:
    """An index of a migration is completed before a segment whose replica has lost its lock or was killed."""
    day, now = Day(history, script), NOON + timedelta(minutes=6)
    await day.store(50, NOON, 60)
    await day.store(1, NOON + timedelta(minutes=5), 1)
    segment = WordSegment(PART, bounds(TODAY)[0], id_of_minute(1), 50)
    created = f"create index concurrently other on {PART} (time)" if other.startswith("index") else segment.statement
    async with history.database.maintaining() as first, history.database.maintaining() as second:
        work = first.execute(created)
        async with waiting(history, PART, work, "create index concurrently") as creating:
            check = asyncio.create_task(create_segments(second, now, minimum=10))
            await at_rest(history, check)
        async with asyncio.timeout(PATIENCE):
            await creating
            await check
        await create_segments(second, now, minimum=10)
        found = await read_segments(second)
        assert (found.invalid, [one.first for one in found.valid]) == ([], [bounds(TODAY)[0]])


async def test_creating_segments_rests_after_errors_as_well(history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation that fails late, by a time limit or a full disk, takes no more of the time than one that works."""
    clock = iter([100.0, 140.0])
    monkeypatch.setattr(word_segment_indexes, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    class Failing(WordSegments):
        """Each creation ends with an error."""

        async def _create(self, connection: Any, _now: Any) -> None:
            await connection.execute("set statement_timeout = 1; select pg_sleep(10)")

    assert await Failing(history.database).check() == 400.0
    with pytest.raises(asyncpg.QueryCanceledError):
        await Failing(history.database).create(NOON)
