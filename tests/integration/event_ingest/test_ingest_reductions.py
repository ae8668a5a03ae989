"""Events with a shorter retention are removed from days that stay, on a real Postgres, while events are stored."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from event_ingest.archive.directory_store import DirectoryStore
from event_ingest.archive.history_archive import HistoryArchive
from event_ingest.archive.restore_queue import HistoryRestores
from event_ingest.history_policy import ExpiredEvents, RetentionPolicy
from event_ingest.history_reducer import HistoryReducer
from event_ingest.history_reduction import MAX_LATE_EVENTS, DayReduction, ReductionResult, reduce_day
from event_ingest.history_retention import HistoryRetention
from event_ingest.partition_indexes import has_term_index, term_index_statement
from event_ingest.queries.audit import AuditSnapshot, read_snapshot
from event_ingest.queries.retention import show_status
from event_ingest.queries.verification import verify_tables
from event_ingest.rebuild import rebuild_tables
from event_ingest.schema import partition_name
from sandherd.contracts.requests import GetAudit, GetHistoryStatus, VerifyHistory
from sandherd.telemetry.meters import Meters
from tests.integration.event_ingest.old_days import OLD, OldDays, opened_old_days

HEARTBEAT = "agent.heartbeat"
FOLDED = RetentionPolicy(0, {}, {HEARTBEAT: 1})
"""A policy without limit, except for heartbeats."""
_ALL = "select *, envelope::text as document from events where type <> $1 order by id"
_KIND = "select relfilenode, reloptions from pg_class where oid = $1::regclass"


@pytest.fixture
async def days(history: Any) -> AsyncIterator[OldDays]:
    async with opened_old_days(history) as found:
        yield found


def beats(script: Any, count: int, sandbox: str = "sbx-1", project: str = "default") -> list[Any]:
    return [script.heartbeat(sandbox, project=project) for _ in range(count)]


async def rows(days: OldDays) -> list[tuple[Any, ...]]:
    """All events except heartbeats, unchanged."""
    return [(*row.values(),) for row in await days.connection.fetch(_ALL, HEARTBEAT)]


async def beating(days: OldDays) -> int:
    return int(await days.connection.fetchval("select count(*) from events where type = $1", HEARTBEAT))


async def audited(days: OldDays, sandbox: str = "sbx-1") -> AuditSnapshot:
    return await read_snapshot(days.history.database, GetAudit(sandbox=sandbox), "default")


async def assert_complete(days: OldDays) -> None:
    """Check that audit, verification and rebuild find nothing missing and nothing different."""
    snapshot = await audited(days)
    assert (snapshot.missing, snapshot.conflicts) == (0, 0)
    async with days.history.database.reading(heavy=True) as connection:
        verified = await verify_tables(connection, VerifyHistory(), "default", 1_000_000)
    assert (verified.incomplete, verified.differences) == (0, [])


async def test_heartbeats_are_removed_and_summarized_and_nothing_else(days: OldDays, script: Any) -> None:
    """Other events are unchanged, no event is missing, a real gap is found, and totals can be rebuilt."""
    part = partition_name(days.old)
    await days.connection.execute(f"alter table {part} set (fillfactor = 90)")
    await days.connection.execute(term_index_statement(part, concurrently=False))
    published = [
        *script.life("task-1", "sbx-1"),
        *script.messages("sbx-1", 3),
        *beats(script, 4),
        *script.messages("sbx-1", 1),
    ]
    script.clock += timedelta(minutes=7)
    await days.store([*published, *beats(script, 1)], days.old)
    before, totals = await rows(days), await days.history.tables()
    old = await days.connection.fetchrow(_KIND, part)
    metrics = await days.reduce(FOLDED)
    assert metrics.get_sample_value("sandherd_history_days_reduced_total") == 9  # including empty ones
    assert (metrics.get_sample_value("sandherd_history_next_reduction_seconds") or 0) > 0
    assert (await beating(days), await rows(days)) == (0, before)
    [summary] = await days.history.rows("select * from event_summaries where entity = 'sbx-1'")
    assert (summary["day"], summary["type"], summary["events"]) == (days.old, HEARTBEAT, 5)
    assert (summary["largest_gap"], summary["sequence_sum"]) == (timedelta(minutes=7, seconds=2), 4 + 5 + 6 + 7 + 9)
    await assert_complete(days)
    new = await days.connection.fetchrow(_KIND, part)
    assert (new["relfilenode"] != old["relfilenode"], new["reloptions"]) == (True, old["reloptions"])
    assert await has_term_index(days.connection, part)
    await days.reduce(FOLDED)
    assert (await days.connection.fetchrow(_KIND, part))["relfilenode"] == new["relfilenode"]
    await days.connection.execute("update sources set highest = 99, heartbeats = 1, last_heartbeat = null")
    assert (await rebuild_tables(days.connection)).not_rebuilt == 0
    assert await days.history.tables() == totals
    await days.connection.execute("delete from events where type = 'agent.message' and sequence = 2")
    await days.connection.execute(
        "update sources set stored = stored - 1, sequence_sum = sequence_sum - 2 "
        "where source = '/sandherd/sandbox/sbx-1'"
    )
    own = next(one for one in (await audited(days)).sources if one.source == "/sandherd/sandbox/sbx-1")
    assert [(gap.first, gap.last) for gap in own.gaps] == [(2, 2)]


async def test_events_that_are_stored_later_are_removed_and_counted_once(days: OldDays, script: Any) -> None:
    """A few late events are deleted, many removed as before; a redelivered one is not counted again."""
    first = beats(script, 3)
    await days.store([*script.messages("sbx-1", 1), *first], days.old)
    await days.reduce(FOLDED)
    kind = await days.connection.fetchrow(_KIND, partition_name(days.old))
    await days.store([*first[:2], *beats(script, 1)], days.old)  # ids are new, but not known any more
    assert (await audited(days)).conflicts == 2
    await days.reduce(FOLDED)
    assert await beating(days) == 0
    assert await days.connection.fetchrow(_KIND, partition_name(days.old)) == kind
    await assert_complete(days)
    await days.store([*beats(script, MAX_LATE_EVENTS), *first], days.old)
    await days.reduce(FOLDED)
    assert await beating(days) == 0
    assert await days.connection.fetchrow(_KIND, partition_name(days.old)) != kind
    await assert_complete(days)
    [own] = await days.history.rows("select stored, heartbeats from sources")
    assert (own["stored"], own["heartbeats"]) == (MAX_LATE_EVENTS + 5, MAX_LATE_EVENTS + 4)


class Observed:
    """A connection that runs something else before each statement."""

    def __init__(self, connection: Any, before: Callable[[int, str], Awaitable[None]]) -> None:
        self._connection = connection
        self._before = before
        self.number = 0

    def __getattr__(self, name: str) -> Any:
        async def call(statement: str, *values: Any) -> Any:
            self.number += 1
            await self._before(self.number, statement)
            return await getattr(self._connection, name)(statement, *values)

        return call


WANTED = ExpiredEvents(frozenset({HEARTBEAT}), frozenset({"other"}))


async def test_interrupted_at_any_step_nothing_is_lost(days: OldDays, script: Any) -> None:
    """If the server ends the session before any statement, the day is as before, and is then reduced once."""
    await days.store([*script.messages("sbx-1", 2), *beats(script, 2), *beats(script, 1, "sbx-2", "other")], days.old)
    before, wanted = await rows(days), DayReduction(days.old, WANTED)
    steps, done = 0, None
    while done is None:
        steps += 1
        victim = await asyncpg.connect(days.history.url)

        async def end(number: int, _statement: str, last: int = steps, victim: Any = victim) -> None:
            if number == last:
                await days.connection.execute("select pg_terminate_backend($1, 10000)", victim.get_server_pid())

        try:
            done = await reduce_day(Observed(victim, end), wanted, days.now, None)  # type: ignore[arg-type]
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            assert (await rows(days), await beating(days)) == (before, 3)
        finally:
            victim.terminate()
    assert (done, steps > 15) == (ReductionResult.REDUCED, True)
    assert (await rows(days), await beating(days)) == (before, 0)
    left = await days.connection.fetch("select relname from pg_class where relname ~ '_new(_|$)'")
    assert [row["relname"] for row in left] == []
    await assert_complete(days)


async def test_events_that_are_stored_meanwhile_are_not_lost(days: OldDays, script: Any) -> None:
    """An event and a heartbeat that are stored before each statement, also while it waits for a lock, are not lost."""
    await days.store([*script.messages("sbx-1", 5), *beats(script, 5)], days.old)
    writers: list[asyncio.Task[None]] = []

    async def write(number: int, statement: str) -> None:
        if number > 40:
            return
        writers.append(asyncio.create_task(days.store([*script.messages("sbx-1", 1), *beats(script, 1)], days.old)))
        await asyncio.wait(writers[-1:], timeout=0.02)  # it waits while the day is locked

    done = await reduce_day(Observed(days.connection, write), DayReduction(days.old, WANTED), days.now, None)  # type: ignore[arg-type]
    await asyncio.gather(*writers)
    assert (done, len(writers)) == (ReductionResult.REDUCED, 40)
    assert len(await rows(days)) == 45
    await days.reduce(FOLDED)
    assert await beating(days) == 0
    await assert_complete(days)
    [own] = await days.history.rows("select stored, highest, heartbeats from sources")
    assert own == {"stored": 90, "highest": 90, "heartbeats": 45}


async def test_stream_that_is_read_again_meanwhile_postpones_it(days: OldDays, script: Any) -> None:
    """If an event has an old place in the stream, the count shows that it was not found, and nothing changes."""
    await days.store([*script.messages("sbx-1", 2), *beats(script, 2)], days.old)

    async def write(_number: int, statement: str) -> None:
        if statement == "savepoint swap":
            days.history.place = 1
            await days.store(script.messages("sbx-1", 1), days.old)

    wanted = DayReduction(days.old, WANTED)
    assert await reduce_day(Observed(days.connection, write), wanted, days.now, None) is ReductionResult.CHANGED  # type: ignore[arg-type]
    assert (len(await rows(days)), await beating(days)) == (3, 2)
    second = await asyncpg.connect(days.history.url)
    try:
        done = await asyncio.gather(*[reduce_day(one, wanted, days.now, None) for one in (days.connection, second)])
    finally:
        await second.close()
    assert done.count(ReductionResult.REDUCED) >= 1  # by two replicas
    assert (len(await rows(days)), await beating(days)) == (3, 0)
    await assert_complete(days)


async def test_hold_prevents_it_also_when_it_has_begun(days: OldDays, script: Any) -> None:
    """A hold of a project with events of that day prevents it, also one that is added while events are copied."""
    await days.store([*script.messages("sbx-1", 2), *beats(script, 2, "sbx-2", "other")], days.old)
    hold = "insert into history_holds (project, reason) values ('default', 'case 7')"

    async def add(_number: int, statement: str) -> None:
        if statement == "savepoint swap":
            await days.history.rows(hold)

    wanted = DayReduction(days.old, WANTED)
    assert await reduce_day(Observed(days.connection, add), wanted, days.now, None) is ReductionResult.NOT_REDUCIBLE  # type: ignore[arg-type]  # stands in for a connection
    await days.reduce(FOLDED)
    assert await beating(days) == 2
    await days.connection.execute("delete from history_holds")
    await days.reduce(FOLDED)
    assert await beating(days) == 0


async def test_day_that_fails_holds_up_no_other(days: OldDays, script: Any) -> None:
    """An error of Postgres leaves the day as it is, and the next day is reduced."""
    after = days.old + timedelta(days=1)
    await days.store([*beats(script, 1)], days.old)
    await days.store([*beats(script, 1)], after)
    await days.connection.execute(f"create table {partition_name(days.old)}_new ()")
    await days.reduce(FOLDED)
    assert await beating(days) == 1
    await days.connection.execute(f"drop table {partition_name(days.old)}_new")
    await days.reduce(FOLDED)
    assert await beating(days) == 0


async def test_project_with_a_shorter_retention_leaves_the_days_of_others(days: OldDays, script: Any) -> None:
    """A project's events are removed from a day that another project needs; day and summaries are dropped later."""
    others = script.messages("sbx-2", 1, project="other")
    await days.store([*script.messages("sbx-1", 2), *beats(script, 1), *others], days.old)
    await days.run(RetentionPolicy(0, {"other": 10}))
    await days.reduce(RetentionPolicy(0, {"other": 10}, {HEARTBEAT: 1}))
    assert await days.counts() == {"default": 2}
    await assert_complete(days)
    await days.store(script.messages("sbx-3", 1, project="other"), days.old)
    await days.reduce(RetentionPolicy(0, {"other": 10}, {HEARTBEAT: 1}))
    assert await days.counts() == {"default": 2}
    await days.run(RetentionPolicy(90))
    assert not await days.has(days.old)
    left = "select (select count(*) from event_summaries) + (select count(*) from history_reductions where day = $1)"
    assert await days.connection.fetchval(left, days.old) == 0


async def test_summaries_stay_as_long_as_their_project_needs_its_events(days: OldDays, script: Any) -> None:
    """A day in which a project had only heartbeats still belongs to it after these were removed."""
    policy = RetentionPolicy(90, {"web": 400}, {HEARTBEAT: 1})
    await days.store([*script.messages("sbx-2", 1), *beats(script, 2, project="web")], days.old)
    await days.store(beats(script, 2, project="web"), days.old + timedelta(days=1))
    await days.reduce(policy)
    await days.run(policy)
    await days.reduce(policy)
    assert await days.counts() == {}
    assert await days.connection.fetchval("select sum(events)::int from event_summaries") == 4
    assert await days.has(days.old)
    await days.run(RetentionPolicy(90, {"web": 90}, {HEARTBEAT: 1}))
    assert not await days.has(days.old)


async def test_status_shows_when_events_of_a_project_are_removed(days: OldDays, script: Any) -> None:
    """No time is shown for a project that has only summaries, nor if the whole day is dropped then."""
    policy = RetentionPolicy(0, {"trial": OLD + 10}, {HEARTBEAT: 1})

    async def shown() -> datetime | None:
        found = await show_status(policy, days.connection, GetHistoryStatus(), "fleet", 0)
        return next(one.next_reduction_at for one in found.partitions if one.day == days.old)

    await days.store([*script.messages("sbx-1", 1), *beats(script, 1, project="trial")], days.old)
    await days.reduce(policy)
    assert await shown() is None
    await days.store(script.messages("sbx-2", 1, project="trial"), days.old)
    removed_at = await shown()
    assert removed_at is not None
    assert removed_at.date() == days.old + timedelta(days=OLD + 11)
    await days.connection.execute("delete from events where project = 'default'")
    assert await shown() is None


async def restore(days: OldDays, archive: DirectoryStore) -> None:
    """Load the day from the archive for a week."""
    await days.connection.execute("delete from history_restores")
    request = "insert into history_restores (day, project, until) values ($1, '', now() + interval '7 days')"
    await days.connection.execute(request, days.old)
    await HistoryRestores(days.history.database, archive).run_once(days.connection)


async def reduce_restored(days: OldDays, archive: DirectoryStore) -> None:
    """Remove the events again, after the end of the restore."""
    await days.connection.execute("update history_restores set until = now() - interval '1 day'")
    await days.reduce(FOLDED, archive)
    assert await beating(days) == 0
    await assert_complete(days)


async def test_day_is_archived_before_it_is_reduced_and_restored_whole(
    days: OldDays, script: Any, tmp_path: Path
) -> None:
    """Without its archive the day stays whole; a restored day has all events until its end, and is counted once."""
    await days.store([*script.life("task-1", "sbx-1"), *script.messages("sbx-1", 2), *beats(script, 2)], days.old)
    missing = DirectoryStore(tmp_path / "missing")
    registry = CollectorRegistry()
    stored = HistoryArchive(missing, Meters(registry))
    for one in (HistoryReducer, HistoryRetention):  # the second one does not clear the problems of the first
        await one(days.history.database, Meters(CollectorRegistry()), FOLDED, stored).run_once(
            days.connection, days.now
        )
    assert registry.get_sample_value("sandherd_history_unarchived_days") == 9
    assert await beating(days) == 2
    archive = DirectoryStore(tmp_path)
    await days.reduce(FOLDED, archive)
    assert await beating(days) == 0
    assert sum(file.events for file in archive.manifest(days.old).files) == 13
    await restore(days, archive)
    await days.reduce(FOLDED, archive)
    assert await beating(days) == 2
    await assert_complete(days)
    await reduce_restored(days, archive)


async def test_event_that_is_delivered_again_and_restored_is_not_counted(
    days: OldDays, script: Any, tmp_path: Path
) -> None:
    """The event is counted neither when it is stored a second time, nor when both copies are restored."""
    archive, first = DirectoryStore(tmp_path), beats(script, 2)
    await days.store([*script.messages("sbx-1", 1), *first], days.old)
    await days.reduce(FOLDED, archive)
    await days.store(first[:1], days.old)
    await days.reduce(FOLDED, archive)
    await assert_complete(days)
    await restore(days, archive)
    assert await beating(days) == 3
    await reduce_restored(days, archive)
