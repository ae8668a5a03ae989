"""`archives` and `restore`: list the days in the archive of the history, and request that days are restored."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any, Final

from event_ingest.archive.manifest import ArchivedFile, Manifest
from event_ingest.archive.store import ArchiveStore
from event_ingest.database import Connection, Database
from event_ingest.schema import DAYS_BEFORE
from event_ingest.storage.errors import StorageError, StorageFault
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import (
    ArchivedEvents,
    HistoryArchives,
    HistoryRestore,
    ListHistoryArchives,
    RestoreHistory,
)
from sandherd.contracts.requests.archive import MAX_RESTORES

RESTORE_COLUMNS: Final = (
    "day, nullif(project, '') as project, until, restored_by, requested_at, done_at, events, problem"
)
_ROW_BYTES: Final = 256
"""Approximate maximum size of a row of the list."""
_RESTORE: Final = f"""
insert into history_restores as r (day, project, until, restored_by)
select $1, $2, now() + $3::interval, $4 where (select count(*) from history_restores) < $5
    or exists (select from history_restores where day = $1 and project = $2)
on conflict (day, project) do update set until = excluded.until, restored_by = excluded.restored_by,
    requested_at = excluded.requested_at, done_at = null, problem = null
returning {RESTORE_COLUMNS}
"""  # noqa: S608  # our own names


class ArchiveRequests:
    """The handlers of requests about the archive."""

    def __init__(self, database: Database, store: ArchiveStore | None, restore_requested: asyncio.Event) -> None:
        """This object sets `restore_requested` when there is a day to restore."""
        self._database = database
        self._store = store
        self._restore_requested = restore_requested

    async def list_archives(self, request: ListHistoryArchives, max_bytes: int) -> HistoryArchives:
        """The newest archived days before `request.before`, as many as fit in the reply."""
        return await asyncio.to_thread(_list, self._checked_store(), request, max_bytes // _ROW_BYTES)

    async def restore(self, request: RestoreHistory, project: str) -> HistoryRestore:
        """Request that a day is restored.

        Raises `ContractError` if the archive does not have the day, or `MAX_RESTORES` days are restored.
        """
        restored_project = None if project == FLEET else project
        if request.day >= datetime.now(UTC).date() - timedelta(days=DAYS_BEFORE):
            raise ContractError(
                Code.CONFLICT, f"{request.day} is not over yet, or ended less than a day ago", field="day"
            )
        if not (await asyncio.to_thread(_manifest, self._checked_store(), request.day)).of(restored_project):
            text = f"the archive has no events of {restored_project or 'any project'} of {request.day}"
            raise ContractError(Code.NOT_FOUND, text, field="day", remedy="list the archived days")
        async with self._database.reading() as connection:
            restore = await _store_request(connection, request, restored_project)
        self._restore_requested.set()
        return restore

    def _checked_store(self) -> ArchiveStore:
        if self._store is None:
            raise ContractError(
                Code.REFUSED, "the history has no archive", remedy="set SANDHERD_HISTORY_ARCHIVE for event-ingest"
            )
        return self._store


async def _store_request(connection: Connection, request: RestoreHistory, project: str | None) -> HistoryRestore:
    values = request.day, project or "", timedelta(days=request.days), request.restored_by
    row: Any = await connection.fetchrow(_RESTORE, *values, MAX_RESTORES)
    if row is None:
        text = f"there are {MAX_RESTORES} restored days, the maximum"
        raise ContractError(Code.REFUSED, text, remedy="restore days of all projects at once, or wait until some end")
    return HistoryRestore(**row)


def _list(store: ArchiveStore, request: ListHistoryArchives, max_rows: int) -> HistoryArchives:
    """The newest days that have at most `max_rows` rows together, but at least one day."""
    archives: list[ArchivedEvents] = []
    days = [day for day in _days(store) if request.before is None or day < request.before]
    last_day: date | None = None
    for number, day in enumerate(days):
        rows = list(_totals_by_project(_manifest(store, day)))
        if number and (number >= request.limit or len(archives) + len(rows) > max_rows):
            return HistoryArchives(location=store.location, archives=archives, next_before=last_day)
        archives += rows
        last_day = day
    return HistoryArchives(location=store.location, archives=archives)


def _totals_by_project(manifest: Manifest) -> Iterator[ArchivedEvents]:
    def project_of(file: ArchivedFile) -> str:
        return file.project

    for project, group in groupby(sorted(manifest.files, key=project_of), project_of):
        files = list(group)
        yield ArchivedEvents(
            day=manifest.day,
            project=project,
            events=sum(file.events for file in files),
            bytes=sum(file.bytes for file in files),
            files=len(files),
            archived_at=max(file.archived_at for file in files),
        )


def _days(store: ArchiveStore) -> list[date]:
    try:
        return store.days()
    except StorageError as error:
        raise _refusal(error) from error


def _manifest(store: ArchiveStore, day: date) -> Manifest:
    try:
        return store.manifest(day)
    except StorageError as error:
        raise _refusal(error) from error


def _refusal(error: StorageError) -> ContractError:
    """The error for the requester. The text of a `StorageError` ends with its remedy."""
    unavailable = error.fault in (StorageFault.UNREACHABLE, StorageFault.DENIED)
    code = Code.UNAVAILABLE if unavailable else Code.CONFLICT
    text, _, remedy = str(error).partition("; ")
    return ContractError(code, text, remedy=remedy)
