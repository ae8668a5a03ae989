"""Drops the days of the history that nothing needs any more, one partition at a time, while events are stored.

A drop is one transaction: if it is interrupted, the day is stored as before, and the next run drops it. It needs an
exclusive lock of `events` for some milliseconds. While it waits for that lock, later statements wait, too. So it waits
at most `LOCK_MS` for earlier statements, and tries again later. The lock is acquired, used and released in one request
to the server: a service that stops in between blocks no batch. Partitions can't be detached concurrently, because
`events` has a default partition.
"""

import asyncio
import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from enum import Enum
from typing import Final

import asyncpg

from event_ingest.database import Connection
from event_ingest.history_default_partition import delete_undated
from event_ingest.history_partitions import (
    Partition,
    count_events,
    is_attached,
    read_contents,
    read_not_before,
    read_partitions,
    use_indexes,
)
from event_ingest.history_policy import (
    ExaminedDay,
    RetentionPolicy,
    contents_due_at,
    days_ahead,
    may_be_due,
    next_drop,
)
from event_ingest.history_reduction_statements import LOCK_MS, SECOND_LOCK_MS, summaries_name
from event_ingest.retention_task import RetentionTask
from event_ingest.schema import AUTOVACUUM, partition_name
from sandherd.settings import Settings
from sandherd.telemetry import logs

_MAX_TRIES: Final = 30
"""Maximum tries to drop a day in one run."""
_LOCK_ID: Final = 0x5A4D_4452_4F50
_DROP: Final = """
set local lock_timeout = '{wait}ms';
lock table only events in access exclusive mode;
set local lock_timeout = '{second_wait}ms';
drop table {name};
drop table if exists {summaries};
delete from history_reductions where day = '{day}';
commit
"""
_PARTITIONS_WITHOUT_SETTINGS: Final = """
select part.relname from pg_inherits tree join pg_class part on part.oid = tree.inhrelid
where tree.inhparent = 'events'::regclass and part.reloptions is null order by part.relname desc
"""
_log: Final = logs.get("retention")


class DropResult(Enum):
    """The result of a try to drop a day."""

    DROPPED = "dropped"
    BUSY = "busy"
    """Earlier statements did not end in time, or another replica is dropping: try again."""
    CHANGED = "changed"
    """The day has other events than were archived: archive them first."""
    NOT_DUE = "not_due"
    """The day is not due any more, or was dropped."""


def policy_of(settings: Settings) -> RetentionPolicy:
    """The retention policy in the settings."""
    return RetentionPolicy(
        settings.history_days,
        dict(settings.history_project_days),
        dict(settings.history_type_days),
        settings.history_task_days,
    )


async def examine_days(
    connection: Connection, days: Collection[date], policy: RetentionPolicy, now: datetime
) -> list[ExaminedDay]:
    """Find out when each day that may be due is due, and whether it is held. The oldest is first."""
    not_before = await read_not_before(connection)
    examined = []
    async with connection.transaction(readonly=True):
        await use_indexes(connection)
        for day in sorted(day for day in days if may_be_due(day, policy, not_before, now)):
            contents = await read_contents(connection, day, policy)
            due = contents_due_at(day, contents, policy, not_before)
            examined.append(ExaminedDay(day, due, contents.held))
    return examined


async def try_drop(
    connection: Connection, day: date, policy: RetentionPolicy, now: datetime, archived_events: int | None = None
) -> DropResult:
    """Drop a day if it is due, in one transaction. `connection` must not be in another; close it after an error.

    If `archived_events` is given, the day must have this number of events. As events are only added, all of them are
    archived then.
    """
    await connection.execute("begin")
    try:
        if await _is_due_now(connection, day, policy, now):
            if archived_events is not None and await count_events(connection, day) != archived_events:
                await connection.execute("rollback")
                return DropResult.CHANGED
            await connection.execute(_drop_statement(day))
            return DropResult.DROPPED
        result = DropResult.NOT_DUE
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
        result = DropResult.BUSY
    await connection.execute("rollback")
    return result


def _drop_statement(day: date) -> str:
    names = {"name": partition_name(day), "summaries": summaries_name(day), "day": day}
    return _DROP.format(wait=LOCK_MS, second_wait=SECOND_LOCK_MS, **names)


async def _is_due_now(connection: Connection, day: date, policy: RetentionPolicy, now: datetime) -> bool:
    """Whether a day may be dropped. Acquires locks, so that this stays true until the end of the transaction."""
    await connection.execute(f"set local lock_timeout = '{LOCK_MS}ms'")
    if not await connection.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK_ID):
        raise asyncpg.LockNotAvailableError("another replica is dropping days")
    await connection.execute("lock table history_holds in share mode")
    if not await is_attached(connection, day):
        return False
    await connection.execute(f"lock table {partition_name(day)} in share mode")  # no event is added meanwhile
    await use_indexes(connection)
    contents = await read_contents(connection, day, policy)
    due = contents_due_at(day, contents, policy, await read_not_before(connection))
    return ExaminedDay(day, due, contents.held).may_be_dropped(now)


async def set_autovacuum(connection: Connection) -> list[str]:
    """Change the autovacuum settings of partitions that have none. Returns their names. Blocks no writer."""
    changed = []
    for row in await connection.fetch(_PARTITIONS_WITHOUT_SETTINGS):
        with suppress(asyncpg.LockNotAvailableError):  # it is being vacuumed or indexed: the next run changes it
            async with connection.transaction():
                await connection.execute("set local lock_timeout = '1s'")
                await connection.execute(f"alter table {row['relname']} set ({AUTOVACUUM})")
            changed.append(row["relname"])
    return changed


class HistoryRetention(RetentionTask):
    """Measures the history once a minute, and drops the days that are due.

    It runs in every replica, of which one drops at a time.
    """

    check_seconds = 60.0

    async def run_once(self, connection: Connection, now: datetime) -> None:
        """Measure, and drop the days that are due at `now`, or at the database's time if that is earlier."""
        now = min(now, await connection.fetchval("select now()"))
        for name in await set_autovacuum(connection):
            _log.info("autovacuum settings of partition changed", partition=name)
        partitions = await read_partitions(connection)
        days = {partition.day for partition in partitions if partition.day is not None}
        examined = await examine_days(connection, days, self._policy, now)
        due = next_drop(days, examined, self._policy, await read_not_before(connection))
        self._measure(partitions, examined, due, now)
        due_days = [examined_day.day for examined_day in examined if examined_day.may_be_dropped(now)]
        for day in due_days:
            await self._drop(connection, day, now)
        if self._archive is None:
            await self._delete_undated(connection, now)
        else:
            await self._archive.clear_problems(connection, due_days)

    def _measure(
        self, partitions: Sequence[Partition], examined: Sequence[ExaminedDay], due: datetime | None, now: datetime
    ) -> None:
        days = {partition.day for partition in partitions if partition.day is not None}
        self._meters.set("sandherd_history_bytes", sum(partition.bytes for partition in partitions))
        self._meters.set("sandherd_history_days_ahead", days_ahead(days, now.astimezone(UTC).date()))
        self._meters.set(
            "sandherd_history_held_days",
            sum(examined_day.is_due(now) and examined_day.held for examined_day in examined),
        )
        if due is None:
            self._meters.hide("sandherd_history_next_drop_seconds")
        else:
            self._meters.set("sandherd_history_next_drop_seconds", (due - now).total_seconds())

    async def _drop(self, connection: Connection, day: date, now: datetime) -> None:
        archived_events = None if self._archive is None else await self._archive.archive(connection, day)
        if self._archive is not None and archived_events is None:
            return
        result = DropResult.BUSY
        for _ in range(_MAX_TRIES):
            result = await try_drop(connection, day, self._policy, now, archived_events)
            if result is not DropResult.BUSY:
                break
            await asyncio.sleep(random.uniform(0.2, 1))  # so that replicas do not always try at the same time
        if self._archive is not None and result is not DropResult.BUSY:
            self._archive.discard(day)
        if result is DropResult.DROPPED:
            self._meters.count("sandherd_history_days_dropped_total")
            _log.info("day of the history dropped", first=day.isoformat())
        elif result is DropResult.BUSY:
            _log.warning("day of the history not dropped, retrying", first=day.isoformat())

    async def _delete_undated(self, connection: Connection, now: datetime) -> None:
        events = 0
        while deleted := await delete_undated(connection, self._policy, now):
            events += deleted
            await asyncio.sleep(0.1)  # batches of events go first
        if events:
            _log.info("events without a partition deleted", events=events)
