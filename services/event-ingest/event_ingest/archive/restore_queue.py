"""Restores the days that operators have requested, one after the other, in one replica at a time."""

import asyncio
from datetime import date
from typing import Any, Final

import asyncpg

from event_ingest.archive.store import ArchiveStore
from event_ingest.database import Connection, Database, classify_error
from event_ingest.storage.errors import StorageError, StorageFault
from sandherd.telemetry import logs

_CHECK_SECONDS: Final = 10.0
_LOCK_ID: Final = 0x5A4D_5253_5452
_NEXT_REQUEST: Final = """
select day, nullif(project, '') as project from history_restores where done_at is null and problem is null
order by requested_at, day limit 1
"""
_SET_DONE: Final = """
update history_restores set done_at = now(), events = $3 where day = $1 and project = coalesce($2, '')
"""
_SET_PROBLEM: Final = "update history_restores set problem = $3 where day = $1 and project = coalesce($2, '')"
_DELETE_OLD: Final = "delete from history_restores where until < now() - interval '7 days'"
_log: Final = logs.get("retention")


class HistoryRestores:
    """Restores the requested days. The replica that received a request begins at once, others within ten seconds."""

    def __init__(self, database: Database, store: ArchiveStore) -> None:
        self._database = database
        self._store = store
        self.requested = asyncio.Event()
        """Set when there is a new request."""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if await self._database.wait_available(_CHECK_SECONDS):
                await self._try()
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self.requested.wait()
            except TimeoutError:
                continue

    async def _try(self) -> None:
        self.requested.clear()
        try:
            async with self._database.maintaining() as connection:
                await self.run_once(connection)
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None and not isinstance(error, asyncpg.PostgresError):
                raise
            _log.warning("restore failed, retrying", error=str(error)[:200])

    async def run_once(self, connection: Connection) -> None:
        """Restore all requested days, unless another replica does so."""
        await connection.execute(_DELETE_OLD)
        while row := await connection.fetchrow(_NEXT_REQUEST):
            async with self._database.locked(_LOCK_ID) as alone:
                if not alone:
                    return
                await self._restore(connection, row)

    async def _restore(self, connection: Connection, row: Any) -> None:
        day, project = row["day"], row["project"]
        try:
            events = await _restore_events(connection, self._store, day, project)
        except StorageError as error:
            await connection.execute(_SET_PROBLEM, day, project, str(error))
            _log.error("day of the history not restored", first=day.isoformat(), error=str(error))
        else:
            await connection.execute(_SET_DONE, day, project, events)
            _log.info("day of the history restored", first=day.isoformat(), events=events)


async def _restore_events(connection: Connection, store: ArchiveStore, day: date, project: str | None) -> int:
    try:
        from event_ingest.archive.day_restore import restore_day
    except ModuleNotFoundError as error:  # pyarrow is an extra
        raise StorageError(StorageFault.NOT_INSTALLED, f"archives need {error.name}") from error
    return await restore_day(connection, store, day, project)
