"""The schema, kept ready: migrated once, and with a partition for each day to come."""

from collections.abc import Callable
from datetime import date, datetime

from event_ingest.database import Connection
from event_ingest.migrating import migrate
from event_ingest.partitions import ensure_partitions


class Schema:
    """Prepares the database at the first look, anew on each day, and when somebody has emptied it."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._ready_on: date | None = None

    async def prepare(self, connection: Connection) -> None:
        """Raises `MigrationRefusedError` if the database is not for this version of the service."""
        now = self._now()
        there = await connection.fetchval("select to_regclass('events') is not null")
        if there and self._ready_on == now.date():
            return
        await migrate(connection, after=False)  # of several replicas others may still be of the version before
        await ensure_partitions(connection, now)
        self._ready_on = now.date()
