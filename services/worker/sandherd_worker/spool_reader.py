"""Reads the records of the spool, in order, from the first one that the broker has not acknowledged."""

import os
from collections import deque
from typing import Final, NamedTuple

from sandherd_worker.spool import Spool
from sandherd_worker.spool_disk import SpoolBrokenError, SpoolSegment
from sandherd_worker.spool_file import SpoolRecord, decode, needed

_READ_BYTES: Final = 256 * 1024


class SpooledRecord(NamedTuple):
    """A durable record and its number in the spool."""

    number: int
    record: SpoolRecord


class SpoolReader:
    """A read position in the spool. There is one reader; it never returns a record that is already acknowledged."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._ready: deque[SpooledRecord] = deque()
        self._first = 0
        self._descriptor: int | None = None
        self._offset = 0
        self._number = 0
        """The number of the last record that was read."""

    def next(self) -> SpooledRecord | None:
        """The next durable record, or None if no further one is durable yet. Raises `SpoolBrokenError`."""
        while not self._ready and self._number < self._spool.durable:
            self._read_more()
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read_more(self) -> None:
        segment, descriptor = self._current()
        data = os.pread(descriptor, min(_READ_BYTES, segment.size - self._offset), self._offset)
        read = self._decode(segment, data)
        if read == 0:
            record_bytes = needed(data, 0)
            read = self._decode(segment, os.pread(descriptor, record_bytes, self._offset))
        if read == 0:
            raise SpoolBrokenError(f"{segment.path.name}: record {self._number + 1} can't be read back")
        self._offset += read

    def _decode(self, segment: SpoolSegment, data: bytes) -> int:
        """Decode the complete records in `data`; returns how many bytes they take."""
        offset = 0
        while self._number < segment.last and (found := decode(data, offset)) is not None:
            record, offset = found
            self._number += 1
            if self._number > self._spool.acknowledged:
                self._ready.append(SpooledRecord(self._number, record))
        return offset

    def _current(self) -> tuple[SpoolSegment, int]:
        """The segment with the next record, and its open file; all segments before it are already read."""
        segment = next(segment for segment in self._spool.segments if segment.last > self._number)
        if self._descriptor is not None and segment.first == self._first:
            return segment, self._descriptor
        self.close()
        self._descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        self._first, self._offset, self._number = segment.first, 0, segment.first - 1
        return segment, self._descriptor
