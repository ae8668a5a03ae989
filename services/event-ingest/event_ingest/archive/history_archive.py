"""The archive as the retention uses it: a day is dropped or reduced only when all of its events are archived."""

from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Final

from event_ingest.archive.directory_store import DirectoryStore
from event_ingest.archive.s3_store import S3Store
from event_ingest.archive.store import ArchiveStore
from event_ingest.database import Connection
from event_ingest.history_partitions import is_attached, use_indexes
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.s3_place import place_of
from sandherd.settings import Settings
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

_LOCK: Final = 0x5A4D_4152_4348
_FAILED: Final = """
insert into history_archive_problems as p (day, problem) values ($1, $2)
on conflict (day) do update set problem = excluded.problem
"""
_SOLVED: Final = "delete from history_archive_problems where day = $1"
_CLEARED: Final = "delete from history_archive_problems where not (day = any($1::date[]))"
_FAILING: Final = "select count(*) from history_archive_problems"
_log: Final = logs.get("retention")


def store_of(settings: Settings) -> ArchiveStore | None:
    """The archive that the settings describe; None: there is none."""
    if settings.history_archive is None:
        return None
    place = place_of(settings.history_archive, settings)
    return DirectoryStore(Path(settings.history_archive)) if place is None else S3Store(place)


class HistoryArchive:
    """Archives days, in one replica at a time."""

    def __init__(self, store: ArchiveStore, meters: Meters) -> None:
        self._store = store
        self._meters = meters
        self._covered: dict[date, int] = {}
        self.reducing: frozenset[date] = frozenset()
        """The days that are to be reduced, and so are archived, too."""

    async def cover(self, connection: Connection, day: date) -> int | None:
        """Archive what is missing of a day; returns how many events it has, all of which are archived and verified.

        None: it may not be dropped now, as another replica archives, or for a reason that is stored for `history`.
        """
        if day not in self._covered:
            try:
                await self._archive(connection, day)
            except StorageError as error:
                await connection.execute(_FAILED, day, str(error))
                _log.error("day of the history not archived, retrying", first=day.isoformat(), error=str(error))
        return self._covered.get(day)

    def discard(self, day: date) -> None:
        """The day has other events by now, or was dropped."""
        self._covered.pop(day, None)

    async def clear_problems(self, connection: Connection, due: Collection[date]) -> None:
        """Remove the problems of days that are not to be dropped now or are archived, and count those that remain."""
        await connection.execute(_CLEARED, [day for day in {*due, *self.reducing} if day not in self._covered])
        self._meters.set("sandherd_history_unarchived_days", await connection.fetchval(_FAILING))

    async def _archive(self, connection: Connection, day: date) -> None:
        try:
            from event_ingest.archive.archiver import archive_day
        except ModuleNotFoundError as error:  # pyarrow is an extra
            raise StorageError(StorageFault.NOT_INSTALLED, f"archives need {error.name}") from error
        async with connection.transaction(readonly=True):
            if not await connection.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK):
                return
            if not await is_attached(connection, day):
                return
            await use_indexes(connection)
            done = await archive_day(connection, self._store, day)
        self._covered[day] = done.covered
        await connection.execute(_SOLVED, day)
        if done.added:
            self._meters.count("sandherd_history_days_archived_total")
            events = sum(file.events for file in done.added)
            _log.info("day of the history archived", first=day.isoformat(), events=events)
