"""Reads the facts about the partitions of `events` that the retention needs: days, sizes, projects and holds."""

import re
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.history_policy import NOTICE_PERIOD, PartitionContents, RetentionPolicy
from event_ingest.schema import partition_name

MIGRATION: Final = "retention"
"""The name of the migration after which days are dropped."""
REDUCTIONS: Final = "reductions"
"""The name of the migration after which days are reduced."""
_PARTITION_NAME: Final = re.compile(r"events_(\d{4})(\d{2})(\d{2})")
_PARTITIONS: Final = """
select part.relname as name, pg_total_relation_size(part.oid) as bytes, greatest(part.reltuples, 0)::bigint as events
from pg_inherits tree join pg_class part on part.oid = tree.inhrelid
where tree.inhparent = 'events'::regclass order by part.relname
"""
_MIGRATION_TIME: Final = "select coalesce(max(applied_at), now()) from schema_migrations_before where name = $1"
# This query reads one entry of an index for each project, not one for each event.
_PROJECTS: Final = """
with recursive step (project) as (
    (select project from {0} where {1} order by project limit 1)
    union all
    select (select e.project from {0} e where {1} and e.project > step.project order by e.project limit 1)
    from step where step.project is not null
)
select project from step where project is not null
"""
_IS_HELD: Final = """
select exists (select from history_holds h where
    h.task = '' and exists (select from {0} e where e.project = h.project)
    or h.task <> '' and (
        exists (select from {0} e where e.entity = h.task and e.project = h.project)
        or exists (
            select from sandboxes b join {0} e on e.entity = b.sandbox and e.project = b.project
            where b.project = h.project and b.task = h.task)))
"""
_IS_ATTACHED: Final = "select exists (select from pg_inherits where inhrelid = to_regclass($1))"
_COUNT: Final = "select count(*) from {0}"
_RESTORED_UNTIL: Final = "select max(until) from history_restores where day = $1"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of `events`, as Postgres describes it. Its number of events is an estimate."""

    day: date | None
    """None for the default partition."""
    events: int
    bytes: int


async def read_partitions(connection: Connection) -> list[Partition]:
    """All partitions, the oldest first; the default partition is the last."""
    rows: list[Any] = await connection.fetch(_PARTITIONS)
    return [Partition(parse_day(row["name"]), row["events"], row["bytes"]) for row in rows]


def parse_day(name: str) -> date | None:
    """The day of a partition by its name; None for the default partition."""
    match = _PARTITION_NAME.fullmatch(name)
    try:
        return None if match is None else date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return None


async def is_attached(connection: Connection, day: date) -> bool:
    """Whether the partition of a day exists and is attached to `events`."""
    attached: bool = await connection.fetchval(_IS_ATTACHED, partition_name(day))
    return attached


async def count_events(connection: Connection, day: date) -> int:
    """The exact number of events of a day. Postgres counts them in an index, as far as pages are vacuumed."""
    number: int = await connection.fetchval(_COUNT.format(partition_name(day)))
    return number


async def read_not_before(connection: Connection, migration: str = MIGRATION) -> datetime:
    """When the first day may be dropped or reduced: `NOTICE_PERIOD` after this migration was applied."""
    applied_at: datetime = await connection.fetchval(_MIGRATION_TIME, migration)
    return applied_at + NOTICE_PERIOD


async def use_indexes(connection: Connection) -> None:
    """Forbid sequential scans in this transaction, so that indexes are used whatever the statistics suggest."""
    await connection.execute("set local enable_seqscan = off")


async def read_contents(connection: Connection, day: date, policy: RetentionPolicy) -> PartitionContents:
    """Read the facts that decide whether a day can be dropped. Call it in a transaction, after `use_indexes`.

    Projects are read only if the retention depends on them.
    """
    name = partition_name(day)
    projects = await _projects_of_day(connection, day) if policy.varies else []
    held: bool = await connection.fetchval(_IS_HELD.format(name))
    restored_until: datetime | None = await connection.fetchval(_RESTORED_UNTIL, day)
    return PartitionContents(frozenset(projects), held, restored_until)


async def read_projects(connection: Connection, day: date) -> list[str]:
    """The projects that have events in a day's partition. Call it in a transaction, after `use_indexes`."""
    return [row["project"] for row in await connection.fetch(_PROJECTS.format(partition_name(day), "true"))]


async def _projects_of_day(connection: Connection, day: date) -> list[str]:
    """The projects that have events or summaries of a day, because the summaries are dropped with the day."""
    rows = await connection.fetch(_PROJECTS.format("event_summaries", "day = $1"), day)
    return [*await read_projects(connection, day), *(row["project"] for row in rows)]
