"""Loads a day from the archive into its partition, in portions. An event is stored once, however often it is loaded.

If the partition was dropped, the events are loaded into a new table, which is attached as the partition when it is
complete. If a run is interrupted, the next run continues.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final

import asyncpg

from event_ingest import event_rows
from event_ingest.archive.archiver import verify_file
from event_ingest.archive.event_files import COLUMNS, read_rows
from event_ingest.archive.manifest import ArchivedFile
from event_ingest.archive.store import ArchiveStore
from event_ingest.database import Connection
from event_ingest.history_partitions import is_attached
from event_ingest.reader_roles import end_readers
from event_ingest.schema import AUTOVACUUM, bounds, partition_name, stores_short_rows
from event_ingest.short_rows import short_row
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.threaded_contexts import in_thread

_ATTACH_TRIES: Final = 60
_STORED_AT: Final = COLUMNS.index("stored_at")
_ARCHIVED_INDEXES: Final = [COLUMNS.index(name) for name, _ in event_rows.COLUMNS]
"""The index in an archived row of each column of `event_rows.COLUMNS`."""
_RESTORED_COLUMNS: Final = (*event_rows.COLUMNS, ("stored_at", "timestamptz"))
_NAMES: Final = ", ".join(name for name, _ in _RESTORED_COLUMNS)
_VALUES: Final = ", ".join(f"${n}::{kind}[]" for n, (_, kind) in enumerate(_RESTORED_COLUMNS, 1))
_SELECT_LIST: Final = _NAMES.replace("envelope", "envelope::json")
_INSERT: Final = (
    f"insert into {{0}} ({_NAMES}) select {_SELECT_LIST} "  # noqa: S608  # our own names
    f"from unnest({_VALUES}) as archived_row ({_NAMES}) on conflict (id) do nothing"
)
_CREATE: Final = """
create table if not exists {name} (like events including all,
    constraint {name}_of_day check (id >= '{first}' and id < '{end}')) with ({autovacuum})
"""
# Moves the events of the day that are in `events_default`. The lock prevents that others are stored there meanwhile.
# Due to the check constraint, Postgres does not scan the table when it is attached.
_ATTACH: Final = """
set local lock_timeout = '40ms';
lock table events_default in access exclusive mode;
with moved as (delete from events_default where id >= '{first}' and id < '{end}' returning *)
    insert into {name} select * from moved on conflict (id) do nothing;
alter table events attach partition {name} for values from ('{first}') to ('{end}');
alter table {name} drop constraint {name}_of_day
"""


async def restore_day(connection: Connection, store: ArchiveStore, day: date, project: str | None) -> int:
    """Load the events of a project, or of all projects (None). Returns how many of these events the archive has.

    Must not be called in a transaction. Raises `StorageError` before anything is loaded if a file is missing or
    differs from its manifest.
    """
    files = (await asyncio.to_thread(store.manifest, day)).of(project)
    if not files:
        raise StorageError(StorageFault.MISSING, f"the archive has no {day}/ of {project or 'any project'}")
    for file in files:
        await asyncio.to_thread(verify_file, store, day, file)
    attached = await is_attached(connection, day)
    if not attached:
        await connection.execute(_for_day(_CREATE, day))
    short = await stores_short_rows(connection)
    for file in files:
        await _load_file(connection, store, day, file, short=short)
    if not attached:
        await _attach(connection, day)
    return sum(file.events for file in files)


async def _load_file(
    connection: Connection, store: ArchiveStore, day: date, file: ArchivedFile, *, short: bool
) -> None:
    statement = _INSERT.format(partition_name(day))
    async with in_thread(store.open_file(day, file.name)) as opened:
        portions = read_rows(opened)
        while portion := await asyncio.to_thread(_next_portion, portions.__next__):
            restored_rows = [_restored_row(row, short=short) for row in portion]
            await connection.execute(statement, *event_rows.columns(restored_rows))


def _restored_row(archived_row: event_rows.Row, *, short: bool) -> event_rows.Row:
    """The row of an archived event, in the order of `_RESTORED_COLUMNS`."""
    row = tuple(archived_row[index] for index in _ARCHIVED_INDEXES)
    return *(short_row(row) if short else row), archived_row[_STORED_AT]


def _next_portion(next_: Callable[[], list[Any]]) -> Sequence[Any]:
    """The next portion, or an empty one at the end: `StopIteration` can't leave a thread."""
    try:
        return next_()
    except StopIteration:
        return ()


async def _attach(connection: Connection, day: date) -> None:
    await end_readers(connection)
    for tries_left in reversed(range(_ATTACH_TRIES)):
        try:
            async with connection.transaction():
                await connection.execute(_for_day(_ATTACH, day))
            return
        except asyncpg.LockNotAvailableError:
            if not tries_left:
                raise
            await asyncio.sleep(random.uniform(0.2, 1))


def _for_day(statement: str, day: date) -> str:
    first, end = bounds(day)
    return statement.format(name=partition_name(day), first=first, end=end, autovacuum=AUTOVACUUM)
