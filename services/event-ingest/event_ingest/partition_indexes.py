"""Creates the indexes that partitions of `events` lack, one after the other, without blocking their writers.

A migration declares an index of `events` with `on only`, which takes no time. This module creates the indexes of the
partitions, while the service stores events. The index of `events` is valid once all partitions have one.

The index of words is created when a day is over: with it, storing an event would take Postgres four times as long.
Until then the day has indexes of ranges of ids (`word_segment_indexes`). Its other indexes are rebuilt when the day is
over, without the space that was left for further events.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import asyncpg

from event_ingest.database import Connection, Database, classify_error
from event_ingest.schema import partition_name
from event_ingest.search_texts import SEARCHED_TYPES, term_index
from sandherd.telemetry import logs

RETRY_SECONDS: Final = 30.0
"""The delay before the next try after an error, or while another replica creates indexes, in seconds."""
NAMES: Final = ("events_of_activity", "events_of_views")
"""The indexes of `events` that migrations declare with `on only`."""
_CHECK_SECONDS: Final = 3600.0
MAX_LATENESS: Final = timedelta(hours=1)
"""How long after the end of a day its events may still be stored."""
_LOCK_ID: Final = 0x5A4D_494E_4458
_MISSING: Final = """
select parent.relname as parent, part.relname as partition, own.relname as own,
    coalesce(own_index.indisvalid, false) as valid, pg_get_indexdef(parent.oid) as definition
from pg_class parent
join pg_index parent_index on parent_index.indexrelid = parent.oid and parent_index.indrelid = 'events'::regclass
join pg_inherits tree on tree.inhparent = 'events'::regclass
join pg_class part on part.oid = tree.inhrelid
left join pg_class own on own.relname = part.relname || '_' || parent.relname and own.relnamespace = part.relnamespace
left join pg_index own_index on own_index.indexrelid = own.oid
where parent.relname = any($1::text[]) and not exists (
    select from pg_index i join pg_inherits attached on attached.inhrelid = i.indexrelid
    where i.indrelid = part.oid and attached.inhparent = parent.oid)
order by part.relname desc, parent.relname
"""
_WITHOUT_TERMS: Final = """
select part.relname as partition, own.relname is not null as exists
from pg_inherits tree join pg_class part on part.oid = tree.inhrelid
left join pg_class own on own.relname = part.relname || '_of_words' and own.relnamespace = part.relnamespace
left join pg_index own_index on own_index.indexrelid = own.oid
where tree.inhparent = 'events'::regclass and part.relname ~ '^events_[0-9]{8}$' and part.relname < $1
    and not coalesce(own_index.indisvalid, false)
order by part.relname desc
"""
_PACKED_COMMENT: Final = "packed"
"""The comment of an index that was rebuilt. It is set by the last statement, so an interrupted rebuild is repeated."""
_UNPACKED_INDEXES: Final = f"""
select own.relname as name from pg_inherits tree
join pg_class part on part.oid = tree.inhrelid join pg_index on pg_index.indrelid = part.oid
join pg_class own on own.oid = pg_index.indexrelid join pg_am on pg_am.oid = own.relam
where tree.inhparent = 'events'::regclass and part.relname ~ '^events_[0-9]{{8}}$' and part.relname < $1
    and pg_am.amname = 'btree' and own.relname !~ '_cc(new|old)[0-9]*$'
    and obj_description(own.oid, 'pg_class') is distinct from '{_PACKED_COMMENT}'
order by part.relname desc, own.relname
"""  # noqa: S608  # a constant
_HAS_TERMS: Final = "select coalesce((select indisvalid from pg_index where indexrelid = to_regclass($1)), false)"
_TYPES: Final = ", ".join(f"'{name}'" for name in SEARCHED_TYPES)
_log: Final = logs.get("schema")


@dataclass(frozen=True)
class MissingIndex:
    """An index that a partition lacks. A `valid` index exists, and only has to be attached."""

    parent: str
    partition: str
    definition: str
    exists: bool = False
    valid: bool = False

    @property
    def name(self) -> str:
        """The name of the partition's index."""
        return f"{self.partition}_{self.parent}"

    @property
    def statements(self) -> list[str]:
        """The statements that create the index and attach it. An incomplete one is dropped first. Pure."""
        create = self.definition.replace(f"INDEX {self.parent} ON ONLY ", "INDEX CONCURRENTLY {} ON ", 1)
        create = create.replace(f"INDEX {self.parent} ON ", "INDEX CONCURRENTLY {} ON ", 1).format(self.name)
        create = create.replace("ON public.events ", f"ON {self.partition} ", 1).replace(
            "ON events ", f"ON {self.partition} ", 1
        )
        drop = [f"drop index concurrently {self.name}"] if self.exists and not self.valid else []
        attach = f"alter index {self.parent} attach partition {self.name}"
        return [*drop, *([] if self.valid else [create]), attach]


async def missing_indexes(connection: Connection) -> list[MissingIndex]:
    """The indexes that partitions lack, of the newest day first."""
    rows: list[Any] = await connection.fetch(_MISSING, list(NAMES))
    return [
        MissingIndex(row["parent"], row["partition"], row["definition"], row["own"] is not None, row["valid"])
        for row in rows
    ]


async def missing_term_indexes(connection: Connection, now: datetime) -> list[tuple[str, list[str]]]:
    """The indexes of words that past days lack, each with the statements that create it; the newest day first."""
    indexes = []
    for row in await connection.fetch(_WITHOUT_TERMS, _first_unfinished_partition(now)):
        name, create = term_index(row["partition"]), term_index_statement(row["partition"], concurrently=True)
        indexes.append((name, [*([f"drop index concurrently {name}"] if row["exists"] else []), create]))
    return indexes


async def unpacked_indexes(connection: Connection, now: datetime) -> list[tuple[str, list[str]]]:
    """The indexes of past days that have free space, each with the statements that rebuild it; the newest day first."""
    rows = await connection.fetch(_UNPACKED_INDEXES, _first_unfinished_partition(now))
    return [
        (
            name,
            [
                f"drop index concurrently if exists {name}_ccnew",  # left by an interrupted run
                f"drop index concurrently if exists {name}_ccold",
                f"alter index {name} set (fillfactor = 100)",
                f"reindex index concurrently {name}",
                f"comment on index {name} is '{_PACKED_COMMENT}'",
            ],
        )
        for name in (row["name"] for row in rows)
    ]


def term_index_statement(partition: str, *, concurrently: bool) -> str:
    """The statement that creates the index of words of a partition."""
    create = "create index concurrently" if concurrently else "create index"
    return (
        f"{create} {term_index(partition)} on {partition} "
        f"using gin (event_words(project, entity, type, envelope)) where type in ({_TYPES})"
    )


async def has_term_index(connection: Connection, partition: str) -> bool:
    """Whether a partition has a complete index of words."""
    has_index: bool = await connection.fetchval(_HAS_TERMS, term_index(partition))
    return has_index


async def create_missing(connection: Connection, now: datetime) -> None:
    """Create the missing indexes, and rebuild those of past days.

    `connection` must have no timeout of statements and no open transaction. Only one replica may do so at a time.
    """
    declared = [(index.name, index.statements) for index in await missing_indexes(connection)]
    for name, statements in (*declared, *await missing_term_indexes(connection, now)):
        await _execute(connection, statements)
        _log.info("partition index created", index=name)
    for name, statements in await unpacked_indexes(connection, now):
        await _execute(connection, statements)
        _log.info("partition index packed", index=name)


async def _execute(connection: Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        await connection.execute(statement)


def _first_unfinished_partition(now: datetime) -> str:
    """The name of the partition of the first day that is not over."""
    return partition_name((now.astimezone(UTC) - MAX_LATENESS).date())


class PartitionIndexes:
    """Creates missing indexes after the start, and once an hour: a day that has ended needs an index of words."""

    lock: ClassVar[int] = _LOCK_ID
    """The id of the advisory lock of the replica that creates indexes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            has_created = await self._try()
            await asyncio.sleep(_CHECK_SECONDS if has_created else RETRY_SECONDS)

    async def create(self, now: datetime) -> bool:
        """Create the missing indexes. Returns False if another replica does so. Raises the database's errors."""
        async with self._database.locked(self.lock) as alone:
            if alone:
                async with self._database.maintaining() as connection:
                    await self._create(connection, now)
        return alone

    async def _create(self, connection: Connection, now: datetime) -> None:
        await create_missing(connection, now)

    async def _try(self) -> bool:
        if not await self._database.wait_available(RETRY_SECONDS):
            return False
        try:
            return await self.create(datetime.now(UTC))
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None and not isinstance(error, asyncpg.PostgresError):
                raise
            _log.warning("partition index not created, retrying", error=str(error)[:200])
            return False
