"""Creates the indexes that partitions of `events` lack, one after the other, without blocking their writers.

A migration declares an index of `events` with `on only`, which takes no time; the partitions of a large history get
theirs here, while the service stores events. The index of `events` is valid once all partitions have one.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from event_ingest.database import Connection, Database, classify_error
from sandherd.telemetry import logs

RETRY_SECONDS: Final = 30.0
"""How long to wait after an error, or while another replica creates them, in seconds."""
NAMES: Final = ("events_of_activity", "events_of_words")
"""The indexes of `events` whose migrations leave those of the partitions to this module."""
_DAY_SECONDS: Final = 86_400.0
_LOCK: Final = 0x5A4D_494E_4458
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
_log: Final = logs.get("schema")


@dataclass(frozen=True)
class MissingIndex:
    """An index that a partition lacks. `valid` is whether it exists and only has to be attached."""

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
        """What creates it. One that an earlier run did not complete is dropped first. Pure."""
        create = self.definition.replace(f"INDEX {self.parent} ON ONLY ", "INDEX CONCURRENTLY {} ON ", 1)
        create = create.replace(f"INDEX {self.parent} ON ", "INDEX CONCURRENTLY {} ON ", 1).format(self.name)
        created = create.replace("ON public.events ", f"ON {self.partition} ", 1).replace(
            "ON events ", f"ON {self.partition} ", 1
        )
        dropped = [f"drop index concurrently {self.name}"] if self.exists and not self.valid else []
        attach = f"alter index {self.parent} attach partition {self.name}"
        return [*dropped, *([] if self.valid else [created]), attach]


async def missing_indexes(connection: Connection) -> list[MissingIndex]:
    """The indexes that partitions lack, of the newest day first."""
    rows: list[Any] = await connection.fetch(_MISSING, list(NAMES))
    return [
        MissingIndex(row["parent"], row["partition"], row["definition"], row["own"] is not None, row["valid"])
        for row in rows
    ]


async def create_missing(connection: Connection) -> bool:
    """Create them; returns False if another replica does. Of a connection without a time limit, in no transaction."""
    if not await connection.fetchval("select pg_try_advisory_lock($1)", _LOCK):
        return False
    try:
        for missing in await missing_indexes(connection):
            for statement in missing.statements:
                await connection.execute(statement)
            _log.info("index of a partition created", index=missing.name)
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", _LOCK)
    return True


class PartitionIndexes:
    """Creates what is missing after the start, and once a day; a new partition is created with its indexes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            done = await self._try()
            await asyncio.sleep(_DAY_SECONDS if done else RETRY_SECONDS)

    async def _try(self) -> bool:
        if not await self._database.wait_available(RETRY_SECONDS):
            return False
        try:
            async with self._database.maintaining() as connection:
                return await create_missing(connection)
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None and not isinstance(error, asyncpg.PostgresError):
                raise
            _log.warning("index of a partition not created, trying again", error=str(error)[:200])
            return False
