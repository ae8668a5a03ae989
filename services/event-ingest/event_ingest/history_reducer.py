"""Finds the days that have expired events but can't be dropped yet, and removes these events, one day after the other.

This is called a reduction of the day. Then it deletes ended tasks that have no stored events.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from datetime import date, datetime
from typing import Any, Final

import asyncpg

from event_ingest.database import Connection
from event_ingest.ended_task_cleanup import delete_ended_tasks
from event_ingest.history_partitions import (
    REDUCTIONS,
    read_contents,
    read_not_before,
    read_partitions,
    use_indexes,
)
from event_ingest.history_policy import (
    ExpiredEvents,
    RetentionPolicy,
    expired_projects,
    expired_types,
    may_be_due,
    may_be_reduced,
    next_reduction,
)
from event_ingest.history_reduction import MAX_LATE_EVENTS, DayReduction, ReductionResult, reduce_day
from event_ingest.history_reduction_statements import type_list
from event_ingest.retention_task import RetentionTask
from event_ingest.schema import partition_name
from sandherd.telemetry import logs

_CHECK_SECONDS: Final = 600.0
_REMOVED_TYPES: Final = "select day, types from history_reductions"
# A reduced day has an index of expired events. The index has only events that were stored after the reduction.
_LATE_EVENTS: Final = f"""
select id from (
    (select id from {{part}} where type in ({{types}}) limit {MAX_LATE_EVENTS + 1})
    union (select id from {{part}} where project = any($1::text[]) limit {MAX_LATE_EVENTS + 1})
) as late_rows limit {MAX_LATE_EVENTS + 1}
"""  # noqa: S608  # constant numbers
_log: Final = logs.get("retention")


async def find_reductions(
    connection: Connection, days: Collection[date], policy: RetentionPolicy, now: datetime
) -> list[DayReduction]:
    """The reductions that are due, of the oldest day first."""
    not_before = await read_not_before(connection, REDUCTIONS)
    removed_types = await read_removed_types(connection)
    reductions = []
    async with connection.transaction(readonly=True):
        await use_indexes(connection)
        for day in sorted(days):
            if not (types := expired_types(day, policy, not_before, now)) and not (
                policy.varies and may_be_due(day, policy, not_before, now)
            ):
                continue
            contents = await read_contents(connection, day, policy)
            expired = ExpiredEvents(types, expired_projects(day, contents, policy, not_before, now))
            if expired and may_be_reduced(contents, now):
                reductions += await _reductions_of_day(connection, day, expired, removed_types.get(day))
    return reductions


async def read_removed_types(connection: Connection) -> dict[date, frozenset[str]]:
    """The days that were reduced, with the types that were removed from each."""
    rows: list[Any] = await connection.fetch(_REMOVED_TYPES)
    return {row["day"]: frozenset(row["types"]) for row in rows}


async def _reductions_of_day(
    connection: Connection, day: date, expired: ExpiredEvents, removed_types: Collection[str] | None
) -> list[DayReduction]:
    """The reduction of a day, or nothing if it has no expired events.

    `removed_types` has the types that an earlier reduction has removed; None if there was none. If only a few expired
    events were stored after it, only they are removed.
    """
    if removed_types is None or not expired.types <= set(removed_types):
        return [DayReduction(day, expired)]
    statement = _LATE_EVENTS.format(part=partition_name(day), types=type_list(expired.types) or "null")
    late_rows = await connection.fetch(statement, sorted(expired.projects))
    if not late_rows:
        return []
    return [
        DayReduction(day, expired, tuple(row["id"] for row in late_rows) if len(late_rows) <= MAX_LATE_EVENTS else ())
    ]


class HistoryReducer(RetentionTask):
    """Reduces the days that are due, every ten minutes. It runs in every replica, of which one reduces at a time."""

    check_seconds = _CHECK_SECONDS
    retried_errors = (asyncpg.PostgresError,)

    async def run_once(self, connection: Connection, now: datetime) -> None:
        """Reduce the days that are due at `now`, or at the database's time if that is earlier."""
        now = min(now, await connection.fetchval("select now()"))
        days = {partition.day for partition in await read_partitions(connection) if partition.day is not None}
        reductions = await find_reductions(connection, days, self._policy, now)
        if self._archive is not None:
            self._archive.days_to_reduce = frozenset(reduction.day for reduction in reductions)
        for reduction in reductions:
            began = time.monotonic()
            await self._reduce(connection, reduction, now)
            # Pause as long as the reduction took, at most 10 minutes, so that batches of events can be stored.
            await asyncio.sleep(min(time.monotonic() - began, _CHECK_SECONDS))
        await self._delete_ended(connection, now)
        self._measure(days, await read_removed_types(connection), await read_not_before(connection, REDUCTIONS), now)

    async def _delete_ended(self, connection: Connection, now: datetime) -> None:
        tasks = 0
        while deleted := await delete_ended_tasks(connection, self._policy, now):
            tasks += deleted
            await asyncio.sleep(0.1)  # batches of events go first
        if tasks:
            self._meters.count("sandherd_history_tasks_deleted_total", tasks)
            _log.info("ended tasks deleted", tasks=tasks)

    async def _reduce(self, connection: Connection, reduction: DayReduction, now: datetime) -> None:
        archived_events = None if self._archive is None else await self._archive.archive(connection, reduction.day)
        if self._archive is not None and archived_events is None:
            return
        try:
            result = await reduce_day(connection, reduction, now, archived_events)
        except asyncpg.PostgresError as error:
            if connection.is_closed() or isinstance(error, asyncpg.InsufficientResourcesError):
                raise
            await connection.execute("rollback")  # one day must not keep the others from being reduced
            _log.warning("day of the history not reduced, retrying", first=reduction.day.isoformat(), error=str(error))
            return
        finally:
            if self._archive is not None:
                self._archive.discard(reduction.day)
        if result is ReductionResult.REDUCED:
            self._meters.count("sandherd_history_days_reduced_total")
            _log.info("day of the history reduced", first=reduction.day.isoformat())
        elif result is not ReductionResult.NOT_REDUCIBLE:
            _log.warning("day of the history not reduced, retrying", first=reduction.day.isoformat())

    def _measure(
        self, days: Collection[date], removed_types: Mapping[date, Collection[str]], not_before: datetime, now: datetime
    ) -> None:
        due = next_reduction(days, removed_types, self._policy, not_before)
        if due is None:
            self._meters.hide("sandherd_history_next_reduction_seconds")
        else:
            self._meters.set("sandherd_history_next_reduction_seconds", (due - now).total_seconds())
