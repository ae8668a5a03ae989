"""Reduces a day of the history: its partition is replaced by one without expired events, while events are stored.

A reduction is one transaction: if it is interrupted, the day is stored as before, and the next run reduces it. First,
the events that stay are copied, which blocks nothing. Then a lock prevents that events of the day are stored. Events
that were stored during the first copy are found by their higher stream sequence, and copied. Then all events are
counted: if some were not found, because the stream was read again or replaced, nothing is changed. The exclusive lock
of `events` is acquired, used and released in one request to the server. It has the same timeout as for a drop.

Events that are removed because of their type are added up in `event_summaries`, with their sequences. So `audit`,
`verify` and `rebuild` know of them. If such an event is delivered again later, it is counted again; the next reduction
of the day detects that and corrects the count.
"""

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

import asyncpg

from event_ingest.database import Connection
from event_ingest.history_partitions import count_events, is_attached, read_contents, read_projects, use_indexes
from event_ingest.history_policy import ExpiredEvents, RetentionPolicy, may_be_reduced
from event_ingest.history_reduction_statements import (
    ADD_SUMMARIES,
    ADD_UP_EXPIRED,
    COPY,
    CREATE,
    LOCK_MS,
    NEW_ROWS,
    NEWEST,
    OLD_ROWS,
    OPTIONS,
    RECORD,
    ROWS_BY_ID,
    SUBTRACT_COUNTED_AGAIN,
    SWAP,
    for_day,
    type_list,
)
from event_ingest.partition_indexes import has_term_index, term_index_statement
from event_ingest.schema import AUTOVACUUM, partition_name

MAX_LATE_EVENTS: Final = 1000
"""If a day was reduced before, and at most this many expired events were stored afterwards, only they are deleted."""
_MAX_TRIES: Final = 30
_LOCK_ID: Final = 0x5A4D_5244_4345
_BUSY: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


class ReductionResult(Enum):
    """The result of a try to reduce a day."""

    REDUCED = "reduced"
    BUSY = "busy"
    """Earlier statements did not end in time, or another replica is reducing: try again."""
    CHANGED = "changed"
    """The day has other events than were copied or archived: try again later."""
    NOT_REDUCIBLE = "not_reducible"
    """The day is held or restored, or was dropped."""


@dataclass(frozen=True, slots=True)
class DayReduction:
    """The events that are to be removed from a day."""

    day: date
    expired: ExpiredEvents
    late: tuple[UUID, ...] = ()
    """For a day that was reduced before: only these events are removed."""


@dataclass(slots=True)
class _CopiedPart:
    """The result of copying a part of a day."""

    newest: int
    """The stream sequence up to which (or after which, in the second part) events were copied."""
    copied: int
    """The number of copied events."""
    left_out: list[Any]
    """Rows of `ADD_UP_EXPIRED`, with the number of events of each source that were not copied."""

    @property
    def removed(self) -> int:
        return sum(row["events"] for row in self.left_out)

    @property
    def total(self) -> int:
        return self.copied + self.removed


async def reduce_day(
    connection: Connection, reduction: DayReduction, now: datetime, archived_events: int | None
) -> ReductionResult:
    """Remove expired events from a day. `connection` must have no open transaction; after an error, it may have one.

    If `archived_events` is given, the day must have this number of events. As events are only added, all of them are
    archived then.
    """
    try:
        await connection.execute(for_day(ADD_SUMMARIES, reduction.day))
    except (*_BUSY, asyncpg.UndefinedTableError) as error:  # the latter if the day was dropped
        await connection.execute("rollback")
        return ReductionResult.BUSY if isinstance(error, _BUSY) else ReductionResult.NOT_REDUCIBLE
    await connection.execute("begin")
    result = ReductionResult.BUSY
    if await connection.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK_ID):
        result = await (_remove_late if reduction.late else _replace_partition)(
            connection, reduction, now, archived_events
        )
    if result is not ReductionResult.REDUCED:
        await connection.execute("rollback")
    return result


async def _replace_partition(
    connection: Connection, reduction: DayReduction, now: datetime, archived_events: int | None
) -> ReductionResult:
    day = reduction.day
    if not await is_attached(connection, day):
        return ReductionResult.NOT_REDUCIBLE
    newest: int = await connection.fetchval(for_day(NEWEST, day), await _read_projects(connection, day))
    options = await connection.fetchval(OPTIONS, partition_name(day))
    await connection.execute(for_day(CREATE, day, options=options or AUTOVACUUM))
    old = await _copy(connection, reduction, OLD_ROWS, newest, None)
    await _create_indexes(connection, reduction)
    for _ in range(_MAX_TRIES):
        await connection.execute("savepoint swap")
        try:
            return await _swap_partition(connection, reduction, old, now, archived_events)
        except _BUSY:
            await connection.execute("rollback to savepoint swap")
            await asyncio.sleep(random.uniform(0.2, 1))  # batches of events go first
    return ReductionResult.BUSY


async def _swap_partition(
    connection: Connection, reduction: DayReduction, old: _CopiedPart, now: datetime, archived_events: int | None
) -> ReductionResult:
    """Copy the events that were stored meanwhile, and replace the partition. Commits if the result is `REDUCED`."""
    day = reduction.day
    if not await _lock_day(connection, day, now):
        return ReductionResult.NOT_REDUCIBLE
    new = await _copy(connection, reduction, NEW_ROWS, old.newest, await read_projects(connection, day))
    total = old.total + new.total
    if await count_events(connection, day) != total or archived_events not in (None, total):
        return ReductionResult.CHANGED
    await _subtract_counted_again(connection, [*old.left_out, *new.left_out])
    await _record_reduction(connection, reduction, old.removed + new.removed)
    await connection.execute(for_day(SWAP, day))
    return ReductionResult.REDUCED


async def _remove_late(
    connection: Connection, reduction: DayReduction, now: datetime, archived_events: int | None
) -> ReductionResult:
    """Remove a few events that were stored after the day was reduced. Commits if the result is `REDUCED`."""
    try:
        if not await _lock_day(connection, reduction.day, now):
            return ReductionResult.NOT_REDUCIBLE
        if archived_events not in (None, await count_events(connection, reduction.day)):
            return ReductionResult.CHANGED
        rows = await connection.fetch(
            for_day(ADD_UP_EXPIRED, reduction.day, ROWS_BY_ID), *_values(reduction, reduction.late, None)
        )
        await _subtract_counted_again(connection, rows)
        statement = f"delete from {partition_name(reduction.day)} where id = any($1)"  # noqa: S608  # our own name
        await connection.execute(statement, reduction.late)
        await _record_reduction(connection, reduction, len(reduction.late))
    except _BUSY:
        return ReductionResult.BUSY
    await connection.execute("commit")
    return ReductionResult.REDUCED


async def _lock_day(connection: Connection, day: date, now: datetime) -> bool:
    """Lock a day, so that no event of it is stored and no hold is added. Returns whether it may be reduced."""
    await connection.execute(f"set local lock_timeout = '{LOCK_MS}ms'")
    await connection.execute("lock table history_holds in share mode")
    if not await is_attached(connection, day):
        return False
    await connection.execute(f"lock table {partition_name(day)} in share mode")
    await use_indexes(connection)
    return may_be_reduced(await read_contents(connection, day, RetentionPolicy(0)), now)


async def _copy(
    connection: Connection, reduction: DayReduction, rows: str, newest: int, projects: Collection[str] | None
) -> _CopiedPart:
    values = _values(reduction, newest, projects)
    status: str = await connection.execute(for_day(COPY, reduction.day, rows), *values[:-1])
    left_out: Sequence[Any] = await connection.fetch(for_day(ADD_UP_EXPIRED, reduction.day, rows), *values)
    return _CopiedPart(newest, int(status.rpartition(" ")[2]), list(left_out))


async def _create_indexes(connection: Connection, reduction: DayReduction) -> None:
    """Create the index of words, if the old partition has one, and that of expired events, which is empty at first."""
    part = partition_name(reduction.day)
    if await has_term_index(connection, part):
        await connection.execute(term_index_statement(f"{part}_new", concurrently=False))
    removed_types = await connection.fetchval("select types from history_reductions where day = $1", reduction.day)
    if types := reduction.expired.types | set(removed_types or ()):
        listed = type_list(types)
        await connection.execute(f"create index {part}_new_expired on {part}_new (type) where type in ({listed})")
    await connection.execute(f"analyze {part}_new")


async def _subtract_counted_again(connection: Connection, rows: Collection[Any]) -> None:
    """Correct the counts of sources whose events were counted again after they had been removed."""
    counted_again = [(*row.values(),) for row in rows if row["again"]]
    if counted_again:
        project, source, entity, _, *numbers = (list(column) for column in zip(*counted_again, strict=True))
        await connection.execute(SUBTRACT_COUNTED_AGAIN, project, source, entity, *numbers)


async def _record_reduction(connection: Connection, reduction: DayReduction, removed: int) -> None:
    await connection.execute(
        RECORD, reduction.day, *(sorted(names) for names in _types_and_projects(reduction.expired)), removed
    )


async def _read_projects(connection: Connection, day: date) -> list[str]:
    await connection.execute("savepoint indexes")
    await use_indexes(connection)
    projects = await read_projects(connection, day)
    await connection.execute("rollback to savepoint indexes")
    return projects


def _types_and_projects(expired: ExpiredEvents) -> tuple[frozenset[str], frozenset[str]]:
    return expired.types, expired.projects


def _values(reduction: DayReduction, first: Any, projects: Collection[str] | None) -> list[Any]:
    """The parameters of `ADD_UP_EXPIRED`. `first` and `projects` select the rows. `COPY` takes all but the last one."""
    return [first, projects, *(sorted(names) for names in _types_and_projects(reduction.expired)), reduction.day]
