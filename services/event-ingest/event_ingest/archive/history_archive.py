"""Archives days for the retention, which drops or reduces a day only when all of its events are archived."""

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

_LOCK_ID: Final = 0x5A4D_4152_4348
_STORE_PROBLEM: Final = """
insert into history_archive_problems as p (day, problem) values ($1, $2)
on conflict (day) do update set problem = excluded.problem
"""
_DELETE_PROBLEM: Final = "delete from history_archive_problems where day = $1"
_DELETE_OTHER_PROBLEMS: Final = "delete from history_archive_problems where not (day = any($1::date[]))"
_COUNT_PROBLEMS: Final = "select count(*) from history_archive_problems"
_log: Final = logs.get("retention")


def archive_store(settings: Settings) -> ArchiveStore | None:
    """The archive of the setting `history_archive`; None if it is not set."""
    if settings.history_archive is None:
        return None
    place = place_of(settings.history_archive, settings)
    return DirectoryStore(Path(settings.history_archive)) if place is None else S3Store(place)


class HistoryArchive:
    """Archives days, in one replica at a time, and stores why a day could not be archived."""

    def __init__(self, store: ArchiveStore, meters: Meters) -> None:
        self._store = store
        self._meters = meters
        self._archived_events: dict[date, int] = {}
        """The number of events of each day that is archived."""
        self.days_to_reduce: frozenset[date] = frozenset()
        """The days that `HistoryReducer` will reduce. They have to be archived before."""

    async def archive(self, connection: Connection, day: date) -> int | None:
        """Archive the events of a day that the archive lacks. Returns how many events the day has in all.

        Returns None if the day may not be dropped now: its partition is not attached, another replica is archiving, or
        there was an error, which is stored for `sandherd history`.
        """
        if day not in self._archived_events:
            try:
                await self._archive_day(connection, day)
            except StorageError as error:
                await connection.execute(_STORE_PROBLEM, day, str(error))
                _log.error("day of the history not archived, retrying", first=day.isoformat(), error=str(error))
        return self._archived_events.get(day)

    def discard(self, day: date) -> None:
        """Discard the count of an archived day, because its events have changed or it was dropped."""
        self._archived_events.pop(day, None)

    async def clear_problems(self, connection: Connection, due_days: Collection[date]) -> None:
        """Delete the stored problems of days that are archived, or neither due nor to be reduced. Count the others."""
        await connection.execute(
            _DELETE_OTHER_PROBLEMS,
            [day for day in {*due_days, *self.days_to_reduce} if day not in self._archived_events],
        )
        self._meters.set("sandherd_history_unarchived_days", await connection.fetchval(_COUNT_PROBLEMS))

    async def _archive_day(self, connection: Connection, day: date) -> None:
        try:
            from event_ingest.archive.archiver import archive_day
        except ModuleNotFoundError as error:  # pyarrow is an extra
            raise StorageError(StorageFault.NOT_INSTALLED, f"archives need {error.name}") from error
        async with connection.transaction(readonly=True):
            if not await connection.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK_ID):
                return
            if not await is_attached(connection, day):
                return
            await use_indexes(connection)
            archived = await archive_day(connection, self._store, day)
        self._archived_events[day] = archived.events
        await connection.execute(_DELETE_PROBLEM, day)
        if archived.added:
            self._meters.count("sandherd_history_days_archived_total")
            events = sum(file.events for file in archived.added)
            _log.info("day of the history archived", first=day.isoformat(), events=events)
