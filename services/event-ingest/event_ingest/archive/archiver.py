"""Archives a day: writes the events of its partition that the archive lacks to files, and verifies the files.

Each project has files of its own. A file that a manifest lists is never changed: further events are written to a new
file beside it. So a restored day adds nothing to the archive when it is dropped again, and a late event is in a further
file. The manifest is replaced last. If a run is interrupted before that, the next run deletes the files that the
manifest does not list.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from heapq import merge
from typing import Any, Final

from event_ingest.archive.event_files import (
    COLUMNS,
    EventWriter,
    Key,
    digest_of_events,
    digest_of_file,
    event_writer,
    read_keys,
)
from event_ingest.archive.manifest import ArchivedFile, Manifest
from event_ingest.archive.store import ArchiveStore
from event_ingest.database import Connection
from event_ingest.history_partitions import read_projects
from event_ingest.schema import partition_name
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.threaded_contexts import in_thread

_PORTION_ROWS: Final = 200
"""Rows that are fetched at once. They are few, because the document of an event may have a megabyte."""
_ID_INDEX, _SEQUENCE_INDEX = COLUMNS.index("id"), COLUMNS.index("stream_sequence")
_FULL_VALUES: Final = {
    "source": "event_source(source, entity)",
    "taskid": "event_task(taskid)",
    "sandboxid": "event_sandbox(source, sandboxid, entity)",
    "envelope": "event_document(e::events)",
}
"""The columns that short rows (`short_rows.py`) store in another form, and the SQL that restores their values."""
SELECT_LIST: Final = ", ".join(_FULL_VALUES.get(name, name) for name in COLUMNS)
"""The select list for `COLUMNS` of a table `e`, whatever form its rows have."""
_ROWS: Final = f"select {SELECT_LIST} from {{0}} as e where project = $1 order by stream_sequence, id"  # noqa: S608  # names


@dataclass
class ArchivedDay:
    """The result of archiving a day."""

    events: int = 0
    """The number of events in the partition. All of them are in the archive."""
    added: list[ArchivedFile] = field(default_factory=list)
    """The files that were written."""


async def archive_day(connection: Connection, store: ArchiveStore, day: date) -> ArchivedDay:
    """Archive the events of a day that the archive lacks.

    Call it in a transaction, so that the partition is not dropped meanwhile. Raises `StorageError`. The manifest is
    replaced only after all new files were verified.
    """
    archived = ArchivedDay()
    manifest = await asyncio.to_thread(store.manifest, day)
    await asyncio.to_thread(store.delete_unlisted, manifest)
    for project in await read_projects(connection, day):
        await _archive_project(connection, store, manifest, project, archived)
    if archived.added:
        new_manifest = manifest.with_files(archived.added)
        await asyncio.to_thread(store.write_manifest, new_manifest)
        if await asyncio.to_thread(store.manifest, day) != new_manifest:
            raise StorageError(StorageFault.WRONG_DIGEST, f"the manifest of {day} is not the one that was written")
    return archived


def verify_file(store: ArchiveStore, day: date, file: ArchivedFile) -> None:
    """Read a file, and compare it with the manifest: its digest, and the number and the digest of its events.

    Blocks. Raises `StorageError` if one of them differs.
    """
    with store.open_file(day, file.name) as opened:
        if digest_of_file(opened) != file.sha256:
            raise StorageError(StorageFault.WRONG_DIGEST, f"{day}/{file.name} has another SHA-256 than its manifest")
        opened.seek(0)
        if digest_of_events(opened) != (file.events, file.events_sha256):
            raise StorageError(StorageFault.WRONG_DIGEST, f"{day}/{file.name} has other events than were written")


async def _archive_project(
    connection: Connection, store: ArchiveStore, manifest: Manifest, project: str, archived: ArchivedDay
) -> None:
    """Write the project's events that the archive lacks to a new file. Adds the file and the count to `archived`."""
    day = manifest.day
    async with AsyncExitStack() as stack:
        archived_keys = []
        for file in manifest.of(project):
            await asyncio.to_thread(verify_file, store, day, file)
            archived_keys.append(read_keys(await stack.enter_async_context(in_thread(store.open_file(day, file.name)))))
        unarchived = await asyncio.to_thread(_UnarchivedRows, merge(*archived_keys))
        portions = unarchived.filter(_read_portions(connection, day, project))
        first_portion = await anext(portions, None)
        if first_portion is not None:
            archived.added.append(await _write_file(store, day, project, first_portion, portions))
        archived.events += unarchived.rows_read


async def _write_file(
    store: ArchiveStore, day: date, project: str, first_portion: Sequence[Any], portions: AsyncIterator[Sequence[Any]]
) -> ArchivedFile:
    name = f"{project}.{secrets.token_hex(4)}.parquet"
    async with in_thread(store.create_file(day, name)) as file, in_thread(event_writer(file)) as writer:
        await asyncio.to_thread(writer.add, first_portion)
        async for rows in portions:
            await asyncio.to_thread(writer.add, rows)
        await asyncio.to_thread(writer.close)
    archived_file = _describe(name, project, writer)
    await asyncio.to_thread(verify_file, store, day, archived_file)
    return archived_file


def _describe(name: str, project: str, writer: EventWriter) -> ArchivedFile:
    return ArchivedFile(
        name=name,
        project=project,
        events=writer.events,
        bytes=writer.bytes,
        sha256=writer.sha256,
        events_sha256=writer.events_sha256,
        archived_at=datetime.now(UTC),
    )


async def _read_portions(connection: Connection, day: date, project: str) -> AsyncIterator[list[Any]]:
    cursor = await connection.cursor(_ROWS.format(partition_name(day)), project)
    while rows := await cursor.fetch(_PORTION_ROWS):
        yield rows


class _UnarchivedRows:
    """Removes the rows that files of the archive have. Rows and keys of files must be in ascending order of keys."""

    def __init__(self, archived_keys: Iterator[Key]) -> None:
        self._archived_keys = archived_keys
        self._next_archived_key = next(archived_keys, None)
        self.rows_read = 0

    async def filter(self, portions: AsyncIterator[list[Any]]) -> AsyncIterator[list[Any]]:
        """The rows that no file has, in portions that are not empty."""
        async for rows in portions:
            self.rows_read += len(rows)
            unarchived = rows if self._next_archived_key is None else await asyncio.to_thread(self._unarchived, rows)
            if unarchived:
                yield unarchived

    def _unarchived(self, rows: list[Any]) -> list[Any]:
        return [row for row in rows if not self._is_archived((row[_SEQUENCE_INDEX], row[_ID_INDEX]))]

    def _is_archived(self, key: Key) -> bool:
        while self._next_archived_key is not None and self._next_archived_key < key:
            self._next_archived_key = next(self._archived_keys, None)
        return self._next_archived_key == key
