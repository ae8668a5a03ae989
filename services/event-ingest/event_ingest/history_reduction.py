"""Reduces a day of the history: its partition is replaced by one without expired events, while events are stored.

All of it is one transaction: interrupted at any step, the day is stored as before, and the next run reduces it. What
stays is copied first, and nothing waits for that. What was stored meanwhile is found by its higher sequence in the
stream, and copied while no event of that day can be stored. Then the events of both are counted: if one is missing, as
the stream was read again or is a new one, nothing is changed. The exclusive lock of `events` is taken, used and released
in one request to the server, as for a drop, and waited for as long.

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
from event_ingest.history_policy import Expired, RetentionPolicy, may_be_reduced
from event_ingest.partition_indexes import has_term_index, term_index_statement
from event_ingest.schema import AUTOVACUUM, bounds, partition_name
from sandherd.contracts.events.agent import AgentHeartbeat

LOCK_MS: Final = 40
"""How long it waits for the statements before it; those after it wait for it."""
_SECOND_LOCK_MS: Final = 10
LATE: Final = 1000
"""Maximum of expired events of a reduced day that are deleted one by one: they were stored afterwards."""
_TRIES: Final = 30
_LOCK: Final = 0x5A4D_5244_4345
_OLD_ROWS: Final = "(select * from {part} where stream_sequence <= $1::bigint and $2::text[] is null)"
# By the index of projects.
_NEW_ROWS: Final = "(select * from {part} where project = any($2::text[]) and stream_sequence > $1::bigint)"
_NAMED_ROWS: Final = "(select * from {part} where id = any($1::uuid[]) and $2::text[] is null)"
_IS_EXPIRED: Final = "(e.type = any($3::text[]) or e.project = any($4::text[]))"
_COPY: Final = f"insert into {{new}} select e.* from {{rows}} e where not {_IS_EXPIRED}"  # noqa: S608  # our own names
_FOLD: Final = f"""
with expired as materialized (
    select e.project, e.source, e.entity, e.type, e.sequence::bigint as sequence, e.time, e.stored_at,
        e.project = any($4) as is_of_project,
        coalesce(e.sequence::bigint <@ s.sequences, false) as is_known,
        coalesce(e.sequence::bigint <@ s.sequences and e.stored_at > s.stored_until, false) as is_again
    from {{rows}} e left join event_summaries s on s.day = $5::date and s.project = e.project and s.source = e.source
        and s.entity = e.entity and s.type = e.type
    where {_IS_EXPIRED}
), new as (
    select *, time - lag(time) over (partition by project, source, entity, type order by time) as gap
    from expired where not is_known and not is_of_project
), summarized as (
    insert into event_summaries as s
    select $5::date, project, source, entity, type, count(*), range_agg(int8range(sequence, sequence, '[]')),
        sum(sequence), min(time), max(time), coalesce(max(gap), '0'), max(stored_at)
    from new group by project, source, entity, type
    on conflict (day, project, source, entity, type) do update set
        events = s.events + excluded.events, sequences = s.sequences + excluded.sequences,
        sequence_sum = s.sequence_sum + excluded.sequence_sum, first_at = least(s.first_at, excluded.first_at),
        last_at = greatest(s.last_at, excluded.last_at), largest_gap = greatest(s.largest_gap, excluded.largest_gap),
        stored_until = greatest(s.stored_until, excluded.stored_until)
)
select project, source, entity, count(*) as events, count(*) filter (where is_again) as again,
    coalesce(sum(sequence) filter (where is_again), 0)::bigint as sequence_sum,
    count(*) filter (where is_again and type = '{AgentHeartbeat.type}') as heartbeats
from expired group by project, source, entity
"""  # noqa: S608  # constant statements
_UNCOUNT: Final = """
update sources s set stored = s.stored - g.again, sequence_sum = s.sequence_sum - g.sequence_sum,
    heartbeats = s.heartbeats - g.heartbeats
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
    as g (project, source, entity, again, sequence_sum, heartbeats)
where s.project = g.project and s.source = g.source and s.entity = g.entity
"""
_RECORD: Final = """
insert into history_reductions as r (day, types, projects, removed) values ($1, $2, $3, $4)
on conflict (day) do update set types = array(select distinct unnest(r.types || excluded.types) order by 1),
    projects = array(select distinct unnest(r.projects || excluded.projects) order by 1),
    removed = r.removed + excluded.removed, reduced_at = now()
"""
_NEWEST: Final = (
    "select coalesce(max(found.stream_sequence), 0) from unnest($1::text[]) as one (project) "  # noqa: S608  # our names
    "cross join lateral (select stream_sequence from {part} e where e.project = one.project "
    "order by stream_sequence desc limit 1) as found"
)
_CREATE: Final = """
create table {new} (like events including all,
    constraint {new}_of_day check (id >= '{first}' and id < '{end}')) with ({options})
"""
_OPTIONS: Final = "select array_to_string(reloptions, ', ') from pg_class where oid = $1::regclass"
# The lock keeps the day from being dropped meanwhile.
_ADD_SUMMARIES: Final = """
begin;
set local lock_timeout = '{wait}ms';
lock table {part} in access share mode;
create table if not exists {summaries} partition of event_summaries for values in ('{day}');
commit
"""
_SWAP: Final = """
set local lock_timeout = '{wait}ms';
lock table only events in access exclusive mode;
set local lock_timeout = '{second_wait}ms';
drop table {part};
alter table {new} rename to {part};
do $$ declare name text; begin
    for name in select indexrelid::regclass::text from pg_index where indrelid = '{part}'::regclass loop
        execute format('alter index %I rename to %I', name, replace(name, '{new}', '{part}'));
    end loop;
end $$;
alter table events attach partition {part} for values from ('{first}') to ('{end}');
alter table {part} drop constraint {new}_of_day;
commit
"""
_BUSY: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


class Reduction(Enum):
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
    expired: Expired
    late: tuple[UUID, ...] = ()
    """Of a day that was reduced before: these events only."""


@dataclass(slots=True)
class _Progress:
    """How many events were copied, and how many of each source were not."""

    copied: int
    left: list[Any]

    @property
    def removed(self) -> int:
        return sum(one["events"] for one in self.left)

    @property
    def total(self) -> int:
        return self.copied + self.removed


def summaries_name(day: date) -> str:
    """The table name of a day's summaries."""
    return f"event_summaries_{day:%Y%m%d}"


async def reduce_day(connection: Connection, wanted: DayReduction, now: datetime, archived: int | None) -> Reduction:
    """Remove what is expired from a day. Of a connection that is in no transaction; after an error it is closed.

    With `archived`, only if the day has this number of events: as events are only added, it is those that were archived.
    """
    try:
        await connection.execute(_named(_ADD_SUMMARIES, wanted.day))
    except (*_BUSY, asyncpg.UndefinedTableError) as error:
        await connection.execute("rollback")
        return Reduction.BUSY if isinstance(error, _BUSY) else Reduction.NEEDED
    await connection.execute("begin")
    done = Reduction.BUSY
    if await connection.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK):
        done = await (_remove_late if wanted.late else _replace)(connection, wanted, now, archived)
    if done is not Reduction.REDUCED:
        await connection.execute("rollback")
    return done


async def _replace(connection: Connection, wanted: DayReduction, now: datetime, archived: int | None) -> Reduction:
    day = wanted.day
    if not await is_attached(connection, day):
        return Reduction.NEEDED
    newest: int = await connection.fetchval(_named(_NEWEST, day), await _projects(connection, day))
    options = await connection.fetchval(_OPTIONS, partition_name(day))
    await connection.execute(_named(_CREATE, day, options=options or AUTOVACUUM))
    old = await _copy(connection, wanted, _OLD_ROWS, newest, None)
    await _create_indexes(connection, wanted)
    for _ in range(_TRIES):
        await connection.execute("savepoint swap")
        try:
            return await _swap(connection, wanted, old, newest, now, archived)
        except _BUSY:
            await connection.execute("rollback to savepoint swap")
            await asyncio.sleep(random.uniform(0.2, 1))  # batches go first
    return Reduction.BUSY


async def _swap(
    connection: Connection, wanted: DayReduction, old: _Progress, newest: int, now: datetime, archived: int | None
) -> Reduction:
    """Copy what was stored meanwhile, and replace the partition; ends the transaction if it does."""
    day = wanted.day
    if not await _lock(connection, day, now):
        return Reduction.NEEDED
    new = await _copy(connection, wanted, _NEW_ROWS, newest, await read_projects(connection, day))
    total = old.total + new.total
    if await count_events(connection, day) != total or archived not in (None, total):
        return Reduction.CHANGED
    await _uncount(connection, [*old.left, *new.left])
    await _record(connection, wanted, old.removed + new.removed)
    await connection.execute(_named(_SWAP, day))
    return Reduction.REDUCED


async def _remove_late(connection: Connection, wanted: DayReduction, now: datetime, archived: int | None) -> Reduction:
    """Remove a few events that were stored after the day was reduced; ends the transaction if it does."""
    try:
        if not await _lock(connection, wanted.day, now):
            return Reduction.NEEDED
        if archived not in (None, await count_events(connection, wanted.day)):
            return Reduction.CHANGED
        rows = await connection.fetch(_named(_FOLD, wanted.day, _NAMED_ROWS), *_values(wanted, wanted.late, None))
        await _uncount(connection, rows)
        statement = f"delete from {partition_name(wanted.day)} where id = any($1)"  # noqa: S608  # our own name
        await connection.execute(statement, wanted.late)
        await _record(connection, wanted, len(wanted.late))
    except _BUSY:
        return Reduction.BUSY
    await connection.execute("commit")
    return Reduction.REDUCED


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
    done: str = await connection.execute(_named(_COPY, wanted.day, rows), *values[:-1])
    left: Sequence[Any] = await connection.fetch(_named(_FOLD, wanted.day, rows), *values)
    return _Progress(int(done.rpartition(" ")[2]), list(left))


async def _create_indexes(connection: Connection, wanted: DayReduction) -> None:
    """Its index of words, if it has one, and one of what is not to be in it any more, which is empty at first."""
    part = partition_name(wanted.day)
    if await has_term_index(connection, part):
        await connection.execute(term_index_statement(f"{part}_new", concurrently=False))
    known = await connection.fetchval("select types from history_reductions where day = $1", wanted.day)
    if types := wanted.expired.types | set(known or ()):
        named = type_list(types)
        await connection.execute(f"create index {part}_new_expired on {part}_new (type) where type in ({named})")
    await connection.execute(f"analyze {part}_new")


async def _uncount(connection: Connection, rows: Collection[Any]) -> None:
    again = [(*row.values(),) for row in rows if row["again"]]
    if again:
        project, source, entity, _, *numbers = (list(column) for column in zip(*again, strict=True))
        await connection.execute(_UNCOUNT, project, source, entity, *numbers)


async def _record(connection: Connection, wanted: DayReduction, removed: int) -> None:
    await connection.execute(_RECORD, wanted.day, *(sorted(one) for one in _of(wanted.expired)), removed)


async def _projects(connection: Connection, day: date) -> list[str]:
    await connection.execute("savepoint indexes")
    await use_indexes(connection)
    found = await read_projects(connection, day)
    await connection.execute("rollback to savepoint indexes")
    return found


def type_list(types: Collection[str]) -> str:
    """Types as a list in SQL: names of events, which have no quotes."""
    return ", ".join(f"'{name}'" for name in sorted(types))


def _of(expired: Expired) -> tuple[frozenset[str], frozenset[str]]:
    return expired.types, expired.projects


def _values(wanted: DayReduction, first: Any, projects: Collection[str] | None) -> list[Any]:
    return [first, projects, *(sorted(one) for one in _of(wanted.expired)), wanted.day]


def _named(statement: str, day: date, rows: str = "", options: str = "") -> str:
    part = partition_name(day)
    first, end = bounds(day)
    return statement.format(
        part=part,
        new=f"{part}_new",
        summaries=summaries_name(day),
        rows=rows.format(part=part),
        day=day,
        first=first,
        end=end,
        options=options,
        wait=LOCK_MS,
        second_wait=_SECOND_LOCK_MS,
    )
