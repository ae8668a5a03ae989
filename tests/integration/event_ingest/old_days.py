"""A history with partitions of old days, whose upgrade was long ago."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
from prometheus_client import CollectorRegistry

from event_ingest.archive.history_archive import HistoryArchive
from event_ingest.archive.store import ArchiveStore
from event_ingest.history_partitions import MIGRATION, REDUCTIONS, read_partitions
from event_ingest.history_policy import RetentionPolicy
from event_ingest.history_reducer import HistoryReducer
from event_ingest.history_retention import HistoryRetention
from event_ingest.schema import bounds, ensure_partitions
from sandherd.bus.consumers.consumer import DONE
from sandherd.telemetry.meters import Meters

OLD = 100
"""The age in days of the old events; the default retention is 90."""
POLICY = RetentionPolicy(90)
_VERSION_7 = 7 << 76 | 2 << 62
"""The bits that make a UUID version 7."""


class OldDays:
    """A history with partitions of old days, and an upgrade of long ago."""

    def __init__(self, history: Any, connection: Any) -> None:
        self.history = history
        self.connection = connection
        self.now = datetime.now(UTC)
        self.old = (self.now - timedelta(days=OLD)).date()
        self.ids = 0

    async def store(self, events: list[Any], day: date) -> None:
        """Store events whose ids are of a day."""
        moved = [event.model_copy(update={"id": self._id(day)}) for event in events]
        outcomes = await self.history.deliver(moved)
        assert [one for one in outcomes if one != DONE] == []

    def _id(self, day: date) -> UUID:
        self.ids += 1
        return UUID(int=bounds(day)[0].int | _VERSION_7 | self.ids)

    async def run(self, policy: RetentionPolicy = POLICY, archive: ArchiveStore | None = None) -> CollectorRegistry:
        """Run the retention once; returns its metrics."""
        registry = CollectorRegistry()
        meters = Meters(registry)
        stored = None if archive is None else HistoryArchive(archive, meters)
        await HistoryRetention(self.history.database, meters, policy, stored).run_once(self.connection, self.now)
        return registry

    async def reduce(self, policy: RetentionPolicy, archive: ArchiveStore | None = None) -> CollectorRegistry:
        """Run the removal of events with a shorter retention once; returns its metrics."""
        registry = CollectorRegistry()
        meters = Meters(registry)
        stored = None if archive is None else HistoryArchive(archive, meters)
        await HistoryReducer(self.history.database, meters, policy, stored).run_once(self.connection, self.now)
        return registry

    async def has(self, day: date) -> bool:
        """Whether the day has its partition."""
        return day in {one.day for one in await read_partitions(self.connection)}

    async def counts(self) -> dict[str, int]:
        """The number of stored events of each project."""
        rows = await self.history.rows("select project, count(*) from events group by project")
        return {row["project"]: row["count"] for row in rows}


@asynccontextmanager
async def opened_old_days(history: Any) -> AsyncIterator[OldDays]:
    """Open a history with the partitions from 101 to 93 days ago."""
    connection = await asyncpg.connect(history.url)
    try:
        found = OldDays(history, connection)
        await ensure_partitions(connection, found.now - timedelta(days=OLD))
        await connection.execute(
            "update schema_migrations_before set applied_at = now() - interval '1 year' where name = any($1)",
            [MIGRATION, REDUCTIONS],
        )
        yield found
    finally:
        await connection.close()
