"""Reduces a day of the history: its partition is replaced by one without expired events, while events are stored.

All of it is one transaction: interrupted at any step, the day is stored as before, and the next run reduces it. What
stays is copied first, and nothing waits for that. What was stored meanwhile is found by its higher sequence in the
stream, and copied while no event of that day can be stored. Then the events of both are counted: if one is missing, as
the stream was read again or is a new one, nothing is changed. The exclusive lock of `events` is taken, used and
released in one request to the server, as for a drop, and waited for as long.

Events that are removed by their type are added up in `event_summaries`, with their sequences. So `audit`, `verify` and
`rebuild` know them, and one that is delivered and counted again later is found out, and no longer counted.
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
    COPY,
    CREATE,
    FOLD,
    LOCK_MS,
    NAMED_ROWS,
    NEW_ROWS,
    NEWEST,
    OLD_ROWS,
    OPTIONS,
    RECORD,
    SWAP,
    UNCOUNT,
    named,
    type_list,
)
from event_ingest.partition_indexes import has_term_index, term_index_statement
from event_ingest.schema import AUTOVACUUM, partition_name

LATE: Final = 1000
"""Maximum of expired events of a reduced day that are deleted one by one: they were stored afterwards."""
_TRIES: Final = 30
_LOCK: Final = 0x5A4D_5244_4345
_BUSY: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


class ReductionResult(Enum):
    """The result of a try to reduce a day."""

    REDUCED = "reduced"
    BUSY = "busy"
    """Statements before it did not end in time, or another replica reduces: try again."""
    CHANGED = "changed"
    """It has other events than were copied or archived: try again later."""
    NEEDED = "needed"
    """It is held or restored, or is dropped already."""


@dataclass(frozen=True, slots=True)
class DayReduction:
    """What is to be removed from a day."""

    day: date
    expired: ExpiredEvents
    late: tuple[UUID, ...] = ()
    """For a day that was reduced before: only these events are removed."""


@dataclass(slots=True)
class _Progress:
    """How many events were copied, and how many of each source were not."""

    newest: int
    """The place in the stream up to which, or from which on."""
    copied: int
    left: list[Any]

    @property
    def removed(self) -> int:
        return sum(one["events"] for one in self.left)

    @property
    def total(self) -> int:
        return self.copied + self.removed


async def reduce_day(
    connection: Connection, wanted: DayReduction, now: datetime, archived: int | None
) -> ReductionResult:
    """Remove expired events from a day. `connection` has no open transaction; after an error it is closed.

    With `archived`, only if the day has this number of events: as events are only added, they are archived.
    """
    try:
        await connection.execute(named(ADD_SUMMARIES, wanted.day))
    except (*_BUSY, asyncpg.UndefinedTableError) as error:
        await connection.execute("rollback")
        return ReductionResult.BUSY if isinstance(error, _BUSY) else ReductionResult.NEEDED
    await connection.execute("begin")
    done = ReductionResult.BUSY
    if await connection.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK):
        done = await (_remove_late if wanted.late else _replace)(connection, wanted, now, archived)
    if done is not ReductionResult.REDUCED:
        await connection.execute("rollback")
    return done


async def _replace(
    connection: Connection, wanted: DayReduction, now: datetime, archived: int | None
) -> ReductionResult:
    day = wanted.day
    if not await is_attached(connection, day):
        return ReductionResult.NEEDED
    newest: int = await connection.fetchval(named(NEWEST, day), await _projects(connection, day))
    options = await connection.fetchval(OPTIONS, partition_name(day))
    await connection.execute(named(CREATE, day, options=options or AUTOVACUUM))
    old = await _copy(connection, wanted, OLD_ROWS, newest, None)
    await _create_indexes(connection, wanted)
    for _ in range(_TRIES):
        await connection.execute("savepoint swap")
        try:
            return await _swap(connection, wanted, old, now, archived)
        except _BUSY:
            await connection.execute("rollback to savepoint swap")
            await asyncio.sleep(random.uniform(0.2, 1))  # batches go first
    return ReductionResult.BUSY


async def _swap(
    connection: Connection, wanted: DayReduction, old: _Progress, now: datetime, archived: int | None
) -> ReductionResult:
    """Copy what was stored meanwhile, and replace the partition; ends the transaction if it does."""
    day = wanted.day
    if not await _lock(connection, day, now):
        return ReductionResult.NEEDED
    new = await _copy(connection, wanted, NEW_ROWS, old.newest, await read_projects(connection, day))
    total = old.total + new.total
    if await count_events(connection, day) != total or archived not in (None, total):
        return ReductionResult.CHANGED
    await _uncount(connection, [*old.left, *new.left])
    await _record(connection, wanted, old.removed + new.removed)
    await connection.execute(named(SWAP, day))
    return ReductionResult.REDUCED


async def _remove_late(
    connection: Connection, wanted: DayReduction, now: datetime, archived: int | None
) -> ReductionResult:
    """Remove a few events that were stored after the day was reduced; ends the transaction if it does."""
    try:
        if not await _lock(connection, wanted.day, now):
            return ReductionResult.NEEDED
        if archived not in (None, await count_events(connection, wanted.day)):
            return ReductionResult.CHANGED
        rows = await connection.fetch(named(FOLD, wanted.day, NAMED_ROWS), *_values(wanted, wanted.late, None))
        await _uncount(connection, rows)
        statement = f"delete from {partition_name(wanted.day)} where id = any($1)"  # noqa: S608  # our own name
        await connection.execute(statement, wanted.late)
        await _record(connection, wanted, len(wanted.late))
    except _BUSY:
        return ReductionResult.BUSY
    await connection.execute("commit")
    return ReductionResult.REDUCED


async def _lock(connection: Connection, day: date, now: datetime) -> bool:
    """Whether the day may be reduced, with locks so that this is true until the end, and no event of it is stored."""
    await connection.execute(f"set local lock_timeout = '{LOCK_MS}ms'")
    await connection.execute("lock table history_holds in share mode")
    if not await is_attached(connection, day):
        return False
    await connection.execute(f"lock table {partition_name(day)} in share mode")
    await use_indexes(connection)
    return may_be_reduced(await read_contents(connection, day, RetentionPolicy(0)), now)


async def _copy(
    connection: Connection, wanted: DayReduction, rows: str, newest: int, projects: Collection[str] | None
) -> _Progress:
    values = _values(wanted, newest, projects)
    done: str = await connection.execute(named(COPY, wanted.day, rows), *values[:-1])
    left: Sequence[Any] = await connection.fetch(named(FOLD, wanted.day, rows), *values)
    return _Progress(newest, int(done.rpartition(" ")[2]), list(left))


async def _create_indexes(connection: Connection, wanted: DayReduction) -> None:
    """Its index of words, if it has one, and one of what is not to be in it any more, which is empty at first."""
    part = partition_name(wanted.day)
    if await has_term_index(connection, part):
        await connection.execute(term_index_statement(f"{part}_new", concurrently=False))
    known = await connection.fetchval("select types from history_reductions where day = $1", wanted.day)
    if types := wanted.expired.types | set(known or ()):
        listed = type_list(types)
        await connection.execute(f"create index {part}_new_expired on {part}_new (type) where type in ({listed})")
    await connection.execute(f"analyze {part}_new")


async def _uncount(connection: Connection, rows: Collection[Any]) -> None:
    again = [(*row.values(),) for row in rows if row["again"]]
    if again:
        project, source, entity, _, *numbers = (list(column) for column in zip(*again, strict=True))
        await connection.execute(UNCOUNT, project, source, entity, *numbers)


async def _record(connection: Connection, wanted: DayReduction, removed: int) -> None:
    await connection.execute(RECORD, wanted.day, *(sorted(one) for one in _of(wanted.expired)), removed)


async def _projects(connection: Connection, day: date) -> list[str]:
    await connection.execute("savepoint indexes")
    await use_indexes(connection)
    found = await read_projects(connection, day)
    await connection.execute("rollback to savepoint indexes")
    return found


def _of(expired: ExpiredEvents) -> tuple[frozenset[str], frozenset[str]]:
    return expired.types, expired.projects


def _values(wanted: DayReduction, first: Any, projects: Collection[str] | None) -> list[Any]:
    return [first, projects, *(sorted(one) for one in _of(wanted.expired)), wanted.day]
