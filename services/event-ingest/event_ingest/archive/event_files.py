"""Files of events: Parquet with zstd, in row groups of limited size, with two digests.

One digest is of the file, the other of the values: it is computed from what Postgres has returned, and again from what
was read back, so that it also finds what was lost between the two.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from event_ingest.storage.errors import StorageError, StorageFault, storage_errors
from event_ingest.storage.new_files import NewFile

_TIME: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final = {
    "id": (pa.uuid(), False),
    "stream_sequence": (pa.int64(), False),
    "sequence": (pa.int32(), False),
    "size": (pa.int32(), False),
    "time": (_TIME, False),
    "stored_at": (_TIME, False),
    "project": (pa.string(), False),
    "entity": (pa.string(), False),
    "type": (pa.string(), False),
    "source": (pa.string(), False),
    "taskid": (pa.string(), True),
    "sandboxid": (pa.string(), True),
    "envelope": (pa.string(), False),
}
SCHEMA: Final = pa.schema([pa.field(name, kind, nullable=null) for name, (kind, null) in _TYPES.items()])
COLUMNS: Final = tuple(_TYPES)
"""The columns of `events`, all of them: an event is restored to the letter."""
GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 32 * 1024 * 1024
"""Maximum of rows and of bytes of documents in a row group: what is in memory at once."""
READ_ROWS: Final = 200
"""Rows of one portion that is read."""
_PIECE: Final = 1024 * 1024

Key = tuple[int, UUID]
"""The order of events in a file: sequence in the stream, then id."""


class EventWriter:
    """Writes rows into a file. Its methods block."""

    def __init__(self, file: NewFile) -> None:
        self._sink = _DigestSink(file)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), SCHEMA, compression="zstd", write_page_checksum=True
        )
        self._group: list[pa.RecordBatch] = []
        self._group_bytes = 0
        self._group_rows = 0
        self._values = hashlib.sha256()
        self.events = 0

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows, with the values of `COLUMNS`."""
        ids, *columns = zip(*rows, strict=True)
        arrays = [_array_of_ids(ids), *(pa.array(values, SCHEMA.field(n).type) for n, values in enumerate(columns, 1))]
        batch = pa.record_batch(arrays, schema=SCHEMA)
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        if self._group:
            self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        """Write nothing more: the file is of no use."""
        self._sink.discarding = True

    @property
    def bytes(self) -> int:
        """The size of the file so far."""
        return self._sink.bytes

    @property
    def sha256(self) -> str:
        """The digest of the file."""
        return self._sink.digest.hexdigest()

    @property
    def events_sha256(self) -> str:
        """The digest of the values."""
        return self._values.hexdigest()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._group, SCHEMA)
        _digest_values(self._values.update, table)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.events += table.num_rows
        self._group, self._group_rows, self._group_bytes = [], 0, 0


@contextmanager
def writing(file: NewFile) -> Iterator[EventWriter]:
    """A writer that writes nothing more after an error."""
    writer = EventWriter(file)
    try:
        yield writer
    except BaseException:
        writer.abandon()
        raise


def digest_of_file(file: BinaryIO) -> str:
    """The SHA-256 of a whole file."""
    digest = hashlib.sha256()
    with storage_errors("file"):
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def digest_of_events(file: BinaryIO) -> tuple[int, str]:
    """How many events a file has, and the digest of their values."""
    digest, count = hashlib.sha256(), 0
    with _invalid_file():
        found = _opened(file)
        for index in range(found.num_row_groups):
            table = found.read_row_group(index)
            _digest_values(digest.update, table)
            count += table.num_rows
    return count, digest.hexdigest()


def read_rows(file: BinaryIO) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a file in portions, with the values of `COLUMNS`."""
    for batch in _batches(file, COLUMNS):
        yield list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def read_keys(file: BinaryIO) -> Iterator[Key]:
    """The keys of a file's events, in its order."""
    for batch in _batches(file, ("stream_sequence", "id")):
        found = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        yield from zip(found["stream_sequence"], found["id"], strict=True)


def _array_of_ids(ids: Iterable[UUID]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array([one.bytes for one in ids], pa.binary(16)))


def _batches(file: BinaryIO, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    with _invalid_file():
        yield from _opened(file).iter_batches(batch_size=READ_ROWS, columns=list(columns))


def _opened(file: BinaryIO) -> pq.ParquetFile:
    found = pq.ParquetFile(file, page_checksum_verification=True)
    if not found.schema_arrow.equals(SCHEMA):
        raise StorageError(StorageFault.INVALID, "a file of the archive has other columns than events have")
    return found


@contextmanager
def _invalid_file() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:  # of pyarrow, also a page that is damaged is an `OSError`
        if isinstance(error, OSError) and error.errno is not None:
            with storage_errors("file"):
                raise
        text = f"a file of the archive is not a readable Parquet file: {str(error).splitlines()[0][:200]}"
        raise StorageError(StorageFault.INVALID, text) from error


def _digest_values(update: Callable[[Any], None], table: pa.Table) -> None:
    """Add the values of a table, whatever buffers they are in: for texts their lengths (-1: null) and characters."""
    for column in table.columns:
        array = column.combine_chunks()
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if array.type == pa.string():
            update(_fixed_values(pc.fill_null(pc.binary_length(array), -1)))
            update(_characters(array))
        else:
            update(_fixed_values(array))


def _fixed_values(array: pa.Array) -> memoryview:
    width = array.type.byte_width
    return memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]


def _characters(array: pa.Array) -> memoryview:
    _, offsets, data = array.buffers()
    places = memoryview(offsets).cast("i")
    return memoryview(data or b"")[places[array.offset] : places[array.offset + len(array)]]


class _DigestSink:
    """A file that computes the digest of what is written, and drops what comes after an error."""

    closed = False

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes = 0
        self.discarding = False

    def write(self, data: bytes) -> int:
        """Write and digest."""
        if not self.discarding:
            self._file.write(data)
            self.digest.update(data)
            self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Flushed when the file is closed."""

    def writable(self) -> bool:
        """As pyarrow asks."""
        return True

    def close(self) -> None:
        """The file is closed by who has opened it."""
