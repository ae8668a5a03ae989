"""The statements that reduce a day: copy the events that stay, add up the others, and replace the partition. Pure."""

from collections.abc import Collection
from datetime import date
from typing import Final

from event_ingest.schema import bounds, partition_name
from sandherd.contracts.events.agent import AgentHeartbeat

LOCK_MS: Final = 40
"""How long a drop or a reduction waits for earlier statements, in milliseconds. Later statements wait for as long."""
SECOND_LOCK_MS: Final = 10
"""How long a drop or a reduction that has the lock of `events` waits for further locks, in milliseconds."""
# The rows that `COPY` and `ADD_UP_EXPIRED` read. Each uses `$2`: Postgres must find the types of all parameters.
OLD_ROWS: Final = "(select * from {part} where stream_sequence <= $1::bigint and $2::text[] is null)"
# The condition on projects makes Postgres use the index of projects.
NEW_ROWS: Final = "(select * from {part} where project = any($2::text[]) and stream_sequence > $1::bigint)"
ROWS_BY_ID: Final = "(select * from {part} where id = any($1::uuid[]) and $2::text[] is null)"
_IS_EXPIRED: Final = "(e.type = any($3::text[]) or e.project = any($4::text[]))"
COPY: Final = f"insert into {{new}} select e.* from {{rows}} e where not {_IS_EXPIRED}"  # noqa: S608  # our own names
ADD_UP_EXPIRED: Final = f"""
with expired as materialized (
    select e.project, event_source(e.source, e.entity) as source, e.entity, e.type, e.sequence::bigint as sequence,
        e.time, e.stored_at,
        e.project = any($4) as is_of_project,
        coalesce(e.sequence::bigint <@ s.sequences, false) as is_known,
        coalesce(e.sequence::bigint <@ s.sequences and e.stored_at > s.stored_until, false) as is_again
    from {{rows}} e left join event_summaries s on s.day = $5::date and s.project = e.project
        and s.source = event_source(e.source, e.entity) and s.entity = e.entity and s.type = e.type
    where {_IS_EXPIRED}
), new as (
    select *, time - lag(time) over (partition by project, source, entity, type, is_known order by time) as gap
    from expired where (not is_known or is_again) and not is_of_project
), summarized as (
    insert into event_summaries as s
    select $5::date, project, source, entity, type, count(*) filter (where not is_known),
        coalesce(range_agg(int8range(sequence, sequence, '[]')) filter (where not is_known), '{{{{}}}}'),
        coalesce(sum(sequence) filter (where not is_known), 0), min(time), max(time),
        coalesce(max(gap) filter (where not is_known), '0'), max(stored_at)
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
"""Add the expired events up in `event_summaries`. Returns their numbers by source, and how many were counted again."""
SUBTRACT_COUNTED_AGAIN: Final = """
update sources s set stored = s.stored - g.again, sequence_sum = s.sequence_sum - g.sequence_sum,
    heartbeats = s.heartbeats - g.heartbeats
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
    as g (project, source, entity, again, sequence_sum, heartbeats)
where s.project = g.project and s.source = g.source and s.entity = g.entity
"""
"""Subtract events from `sources` that were counted again after they had been removed."""
RECORD: Final = """
insert into history_reductions as r (day, types, projects, removed) values ($1, $2, $3, $4)
on conflict (day) do update set types = array(select distinct unnest(r.types || excluded.types) order by 1),
    projects = array(select distinct unnest(r.projects || excluded.projects) order by 1),
    removed = r.removed + excluded.removed, reduced_at = now()
"""
NEWEST: Final = (
    "select coalesce(max(found.stream_sequence), 0) from unnest($1::text[]) as wanted (project) "  # our names
    "cross join lateral (select stream_sequence from {part} e where e.project = wanted.project "
    "order by stream_sequence desc limit 1) as found"
)
"""The highest stream sequence of a day, read from one entry of an index for each of these projects."""
CREATE: Final = """
create table {new} (like events including all,
    constraint {new}_of_day check (id >= '{first}' and id < '{end}')) with ({options})
"""
OPTIONS: Final = "select array_to_string(reloptions, ', ') from pg_class where oid = $1::regclass"
"""The storage parameters of a partition."""
# The lock keeps the day from being dropped meanwhile.
ADD_SUMMARIES: Final = """
begin;
set local lock_timeout = '{wait}ms';
lock table {part} in access share mode;
create table if not exists {summaries} partition of event_summaries for values in ('{day}');
commit
"""
SWAP: Final = """
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


def summaries_name(day: date) -> str:
    """The name of the table with the summaries of a day."""
    return f"event_summaries_{day:%Y%m%d}"


def type_list(types: Collection[str]) -> str:
    """Types of events as a list in SQL. Their names contain no quotes."""
    return ", ".join(f"'{name}'" for name in sorted(types))


def for_day(statement: str, day: date, rows: str = "", options: str = "") -> str:
    """The statement, with the names of a day's partition and tables filled in, and the rows that it reads."""
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
        second_wait=SECOND_LOCK_MS,
    )
