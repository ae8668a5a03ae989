"""A task of the history's retention, which runs again and again in every replica."""

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import ClassVar, Final

from event_ingest.archive.history_archive import HistoryArchive
from event_ingest.database import Connection, Database, classify_error
from event_ingest.history_policy import RetentionPolicy
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

_log: Final = logs.get("retention")


class RetentionTask(ABC):
    """Runs `run_once` every `check_seconds`. Without an archive, events that it removes are lost."""

    check_seconds: ClassVar[float]
    retried_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors after which it continues, in addition to those that `classify_error` knows."""

    def __init__(
        self, database: Database, meters: Meters, policy: RetentionPolicy, archive: HistoryArchive | None = None
    ) -> None:
        self._database = database
        self._meters = meters
        self._policy = policy
        self._archive = archive

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if await self._database.wait_available(self.check_seconds):
                await self._try()
                await asyncio.sleep(self.check_seconds)

    async def _try(self) -> None:
        try:
            async with self._database.maintaining() as connection:
                await self.run_once(connection, datetime.now(UTC))
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None and not isinstance(error, self.retried_errors):
                raise
            _log.warning("retention failed, retrying", error=str(error)[:200])

    @abstractmethod
    async def run_once(self, connection: Connection, now: datetime) -> None:
        """Do what is due at `now`, or at the database's time if that is earlier."""
