"""Archives a day: every event of its partition that no file of the archive has, verified by reading it back.

Each project has a file, written beside those that exist: one that is listed in a manifest is never changed. So a day
that was restored adds nothing when it is dropped again, and an event that came late is in a further file. The manifest
is replaced last: interrupted before, the day is as it was, and the next run deletes what is not listed.
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
    read_keys,
    writing,
)
from event_ingest.archive.manifest import ArchivedFile, Manifest
from event_ingest.archive.store import ArchiveStore
from event_ingest.database import Connection
from event_ingest.history_partitions import read_projects
from event_ingest.schema import partition_name
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.threaded_contexts import in_thread

_PORTION: Final = 200
"""Rows of one fetch: documents have up to a megabyte."""
_ID, _SEQUENCE = COLUMNS.index("id"), COLUMNS.index("stream_sequence")
_WHOLE: Final = {
    "source": "event_source(source, entity)",
    "taskid": "event_task(taskid)",
    "sandboxid": "event_sandbox(source, sandboxid, entity)",
    "envelope": "event_document(e::events)",
}
"""The columns that a row in its short form does not have as they are."""
SELECTED: Final = ", ".join(_WHOLE.get(name, name) for name in COLUMNS)
"""The values of `COLUMNS` of a table `e`, whatever form its rows have."""
_ROWS: Final = f"select {SELECTED} from {{0}} as e where project = $1 order by stream_sequence, id"  # noqa: S608  # names


@dataclass
class ArchivedDay:
    """What a run has found and written."""

    covered: int = 0
    """How many events the partition has, all of which are in the archive."""
    added: list[ArchivedFile] = field(default_factory=list)


async def archive_day(connection: Connection, store: ArchiveStore, day: date) -> ArchivedDay:
    """Archive what is missing of a day; in a transaction, so that its partition is not dropped meanwhile.

    Raises `StorageError`; the archive is then as it was before.
    """
    done = ArchivedDay()
    manifest = await asyncio.to_thread(store.manifest, day)
    await asyncio.to_thread(store.delete_unlisted, manifest)
    for project in await read_projects(connection, day):
        await _archive_project(connection, store, manifest, project, done)
    if done.added:
        wanted = manifest.extended(done.added)
        await asyncio.to_thread(store.write_manifest, wanted)
        if await asyncio.to_thread(store.manifest, day) != wanted:
            raise StorageError(StorageFault.WRONG_DIGEST, f"the manifest of {day} is not the one that was written")
    return done


def verify_file(store: ArchiveStore, day: date, file: ArchivedFile) -> None:
    """Read a file, and compare its digest, its count and its values. Blocks. Raises `StorageError`."""
    with store.opened(day, file.name) as opened:
        if digest_of_file(opened) != file.sha256:
            raise StorageError(StorageFault.WRONG_DIGEST, f"{day}/{file.name} has another SHA-256 than its manifest")
        opened.seek(0)
        if digest_of_events(opened) != (file.events, file.events_sha256):
            raise StorageError(StorageFault.WRONG_DIGEST, f"{day}/{file.name} has other events than were written")


async def _archive_project(
    connection: Connection, store: ArchiveStore, manifest: Manifest, project: str, done: ArchivedDay
) -> None:
    day = manifest.day
    async with AsyncExitStack() as stack:
        known = []
        for file in manifest.of(project):
            await asyncio.to_thread(verify_file, store, day, file)
            known.append(read_keys(await stack.enter_async_context(in_thread(store.opened(day, file.name)))))
        missing = await asyncio.to_thread(_Missing, merge(*known))
        portions = missing.of(_portions(connection, day, project))
        first = await anext(portions, None)
        if first is not None:
            done.added.append(await _write(store, day, project, first, portions))
        done.covered += missing.seen


async def _write(
    store: ArchiveStore, day: date, project: str, first: Sequence[Any], portions: AsyncIterator[Sequence[Any]]
) -> ArchivedFile:
    name = f"{project}.{secrets.token_hex(4)}.parquet"
    async with in_thread(store.created(day, name)) as file, in_thread(writing(file)) as writer:
        await asyncio.to_thread(writer.add, first)
        async for rows in portions:
            await asyncio.to_thread(writer.add, rows)
        await asyncio.to_thread(writer.close)
    written = _describe(name, project, writer)
    await asyncio.to_thread(verify_file, store, day, written)
    return written


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


async def _portions(connection: Connection, day: date, project: str) -> AsyncIterator[list[Any]]:
    cursor = await connection.cursor(_ROWS.format(partition_name(day)), project)
    while rows := await cursor.fetch(_PORTION):
        yield rows


class _Missing:
    """Filters rows by the keys of files, both in the same order."""

    def __init__(self, known: Iterator[Key]) -> None:
        self._known = known
        self._next = next(known, None)
        self.seen = 0

    async def of(self, portions: AsyncIterator[list[Any]]) -> AsyncIterator[list[Any]]:
        """The rows that no file has, in portions that are not empty."""
        async for rows in portions:
            self.seen += len(rows)
            found = rows if self._next is None else await asyncio.to_thread(self._filter, rows)
            if found:
                yield found

    def _filter(self, rows: list[Any]) -> list[Any]:
        return [row for row in rows if not self._is_known((row[_SEQUENCE], row[_ID]))]

    def _is_known(self, key: Key) -> bool:
        while self._next is not None and self._next < key:
            self._next = next(self._known, None)
        return self._next == key
