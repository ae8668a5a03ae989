"""Files of events: Parquet with zstd, in row groups of limited size, with two digests.

One digest is of the file. The other is of the values: it is computed before they are encoded as Parquet, and again
after the file was read back. So it also detects errors of the encoding.
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
"""The type of each column, and whether it may be null."""
SCHEMA: Final = pa.schema([pa.field(name, kind, nullable=nullable) for name, (kind, nullable) in _TYPES.items()])
COLUMNS: Final = tuple(_TYPES)
"""All columns of `events`, so that a restored event is identical to the archived one."""
GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 32 * 1024 * 1024
"""A row group is written when it has this many rows or bytes. Until then it is in memory."""
READ_ROWS: Final = 200
"""Rows in a portion when a file is read."""
_READ_BYTES: Final = 1024 * 1024
"""Bytes of a file that are read at once to compute its digest."""

Key = tuple[int, UUID]
"""The stream sequence and the id of an event. The events of a file are in ascending order of this key."""


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
        self._values_digest = hashlib.sha256()
        self.events = 0

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows. Each has the values of `COLUMNS`, in this order."""
        ids, *columns = zip(*rows, strict=True)
        arrays = [_array_of_ids(ids), *(pa.array(values, SCHEMA.field(n).type) for n, values in enumerate(columns, 1))]
        batch = pa.record_batch(arrays, schema=SCHEMA)
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write the last row group and the footer of the file."""
        if self._group:
            self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        """Discard what is written from now on, because the file will not be used."""
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
        return self._values_digest.hexdigest()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._group, SCHEMA)
        _digest_values(self._values_digest.update, table)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.events += table.num_rows
        self._group, self._group_rows, self._group_bytes = [], 0, 0


@contextmanager
def event_writer(file: NewFile) -> Iterator[EventWriter]:
    """An `EventWriter` that writes nothing more after an error in the block."""
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
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def digest_of_events(file: BinaryIO) -> tuple[int, str]:
    """The number of events in a file, and the digest of their values."""
    digest, count = hashlib.sha256(), 0
    with _file_errors():
        parquet_file = _open_parquet(file)
        for index in range(parquet_file.num_row_groups):
            table = parquet_file.read_row_group(index)
            _digest_values(digest.update, table)
            count += table.num_rows
    return count, digest.hexdigest()


def read_rows(file: BinaryIO) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a file, in portions. Each row has the values of `COLUMNS`."""
    for batch in _batches(file, COLUMNS):
        yield list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def read_keys(file: BinaryIO) -> Iterator[Key]:
    """The keys of a file's events, in the order of the file."""
    for batch in _batches(file, ("stream_sequence", "id")):
        values = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        yield from zip(values["stream_sequence"], values["id"], strict=True)


def _array_of_ids(ids: Iterable[UUID]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array([id_.bytes for id_ in ids], pa.binary(16)))


def _batches(file: BinaryIO, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    with _file_errors():
        yield from _open_parquet(file).iter_batches(batch_size=READ_ROWS, columns=list(columns))


def _open_parquet(file: BinaryIO) -> pq.ParquetFile:
    parquet_file = pq.ParquetFile(file, page_checksum_verification=True)
    if not parquet_file.schema_arrow.equals(SCHEMA):
        raise StorageError(StorageFault.INVALID, "a file of the archive has other columns than events have")
    return parquet_file


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raises the errors of pyarrow and of the operating system as `StorageError`."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        # For a damaged page, pyarrow raises an `OSError` without `errno`.
        if isinstance(error, OSError) and error.errno is not None:
            with storage_errors("file"):
                raise
        text = f"a file of the archive is not a readable Parquet file: {str(error).splitlines()[0][:200]}"
        raise StorageError(StorageFault.INVALID, text) from error


def _digest_values(update: Callable[[Any], None], table: pa.Table) -> None:
    """Add the values of each column to a digest: of texts first all lengths (-1 for null), then all characters.

    The result does not depend on how the values are distributed over buffers.
    """
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
    positions = memoryview(offsets).cast("i")
    return memoryview(data or b"")[positions[array.offset] : positions[array.offset + len(array)]]


class _DigestSink:
    """The file object that pyarrow writes to. It computes the digest of the file."""

    closed = False

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes = 0
        self.discarding = False

    def write(self, data: bytes) -> int:
        """Write the data and add them to the digest; do nothing if `discarding` is set."""
        if not self.discarding:
            self._file.write(data)
            self.digest.update(data)
            self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Does nothing: the file is flushed when it is closed."""

    def writable(self) -> bool:
        """Always true; pyarrow calls it."""
        return True

    def close(self) -> None:
        """Does nothing: the code that has opened the file closes it."""
