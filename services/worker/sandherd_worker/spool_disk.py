"""Disk access of the spool: its segments, its lock and its reserve. Everything here may block."""

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.private_files import sync_directory
from sandherd_worker.spool_file import RecordMark, SegmentScan, scan, segment_path, segments

_RESERVE_BYTES: Final = 1024 * 1024
_ZEROS_AHEAD: Final = 128 * 1024
"""The number of zeros that are written after a record that makes a segment longer. The next records overwrite them: an
overwrite becomes durable faster than an append, since neither the file's size nor its blocks change."""
_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_RESERVE_FILE: Final = "reserve"
_DSYNC_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class SpoolError(Exception):
    """The spool can't store a record. `reason` is published at the end of the attempt."""

    reason = "spool_broken"
    final = False
    """Whether even the final records can't be stored."""


class SpoolFullError(SpoolError):
    """The spool has reached its size limit. The final records may still use the reserve."""

    reason = "spool_full"


class DiskFullError(SpoolFullError):
    """The disk has no space left, used by the spool or by others."""

    reason = "disk_full"


class SpoolBrokenError(SpoolError):
    """The disk can't be written; no more records can be stored."""

    final = True


class SpoolBusyError(SpoolError):
    """Another worker holds this spool."""


def spool_error(raised: BaseException) -> SpoolError:
    """The exception of a write as a `SpoolError`."""
    return raised if isinstance(raised, SpoolError) else SpoolBrokenError(f"the spool can't be written: {raised!r}")


@dataclass
class SpoolSegment:
    """One file of the spool. `count` and `size` (bytes) cover what is durable in it; zeros follow up to `allocated`."""

    first: int
    path: Path
    count: int = 0
    size: int = 0
    allocated: int = 0
    descriptor: int | None = None

    @property
    def last(self) -> int:
        """The number of its last durable record; `first - 1` while it is empty."""
        return self.first + self.count - 1


@dataclass
class RecoveredSpool:
    """What an earlier run left: the segments, and the highest sequence and combined marks of their records."""

    segments: list[SpoolSegment]
    sequence: int = 0
    mark: RecordMark = RecordMark.NONE
    damage: Sequence[str] = ()


class SpoolDisk:
    """The directory of one spool."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None

    def open(self) -> RecoveredSpool:
        """Take the lock, cut off an incomplete last record, and return what is stored. Raises `SpoolError`."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_directory()
            self._set_reserve()
            return self._recover()
        except OSError as error:
            raise SpoolBrokenError(f"{self.directory}: {error.strerror or error}") from error

    def allocate(self, segment: SpoolSegment) -> None:
        """Create the file of an empty segment, with zeros that its first records overwrite. Raises `OSError`."""
        if segment.descriptor is None and segment.count == 0:
            _write_durably(self._create(segment), bytes(_ZEROS_AHEAD), 0)
            segment.allocated = _ZEROS_AHEAD

    def write(self, segment: SpoolSegment, data: bytes, use_reserve: bool = False) -> None:  # noqa: FBT001,FBT002  # for an executor
        """Append the data and wait until it is on disk; if that fails, remove all of it. Raises `SpoolError`.

        With `use_reserve`, the reserve is freed if the disk is full. Nothing frees it earlier, because whatever has
        filled the disk would fill that space, too.
        """
        try:
            self._append(segment, data)
        except OSError as error:
            self._undo(segment)
            full = error.errno in _DISK_FULL
            if full and use_reserve and self.free_reserve():
                self.write(segment, data)
                return
            kind = DiskFullError if full else SpoolBrokenError
            raise kind(f"the spool can't be written: {error.strerror or error}") from error

    def free(self) -> int:
        """Free disk space available to the worker, in bytes."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def remove(self, acknowledged: Sequence[SpoolSegment]) -> None:
        """Delete these segments. Raises `OSError`."""
        for segment in acknowledged:
            self._close_segment(segment)
            segment.path.unlink(missing_ok=True)
        sync_directory(self.directory)

    def free_reserve(self) -> bool:
        """Free the reserve; returns whether there was one."""
        try:
            (self.directory / _RESERVE_FILE).unlink()
        except OSError:
            return False
        return True

    def close(self, held: Sequence[SpoolSegment]) -> None:
        """Close the files and release the lock."""
        for segment in held:
            self._close_segment(segment)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _lock_directory(self) -> None:
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise SpoolBusyError(f"{self.directory} is held by another worker") from None

    def _set_reserve(self) -> None:
        """Allocate the reserve. A full disk is reported later, by `write`: recovery must work without any space.

        A lost worker's reserve is not freed: an agent that it left running may still be filling the disk.
        """
        with suppress(OSError), (self.directory / _RESERVE_FILE).open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)

    def _recover(self) -> RecoveredSpool:
        found = RecoveredSpool([])
        for first, path in segments(self.directory):
            content = scan(path.read_bytes())
            found.damage = [*found.damage, *self._cut(path, content)]
            found.segments.append(SpoolSegment(first, path, len(content.records), content.end, content.end))
            for record in content.records:
                found.sequence = max(found.sequence, record.sequence)
                found.mark |= record.mark
        return found

    def _cut(self, path: Path, content: SegmentScan) -> list[str]:
        """Cut off the zeros and an incomplete record, and sync the rest: a killed writer may not have synced it."""
        with path.open("r+b") as file:
            file.truncate(content.end)
            os.fsync(file.fileno())
        return [f"{path.name}: {content.torn} bytes after record {len(content.records)}"] if content.torn else []

    def _create(self, segment: SpoolSegment) -> int:
        segment.path.touch(0o600)
        sync_directory(self.directory)  # before the file is open, so that the next attempt syncs again if this fails
        segment.descriptor = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC)
        return segment.descriptor

    def _append(self, segment: SpoolSegment, data: bytes) -> None:
        descriptor = self._create(segment) if segment.descriptor is None else segment.descriptor
        end = segment.size + len(data)
        if end > segment.allocated:
            try:
                _write_durably(descriptor, data + bytes(_ZEROS_AHEAD), segment.size)
            except OSError as error:
                if error.errno not in _DISK_FULL:
                    raise
                os.ftruncate(descriptor, segment.size)
            else:
                segment.allocated = end + _ZEROS_AHEAD
                return
        _write_durably(descriptor, data, segment.size)
        segment.allocated = max(segment.allocated, end)

    def _undo(self, segment: SpoolSegment) -> None:
        """Remove a failed write. Raises `SpoolBrokenError` if that fails, too: the end of the file is then unknown."""
        if segment.descriptor is None:
            return
        try:
            os.ftruncate(segment.descriptor, segment.size)
        except OSError as error:
            raise SpoolBrokenError(f"the spool can't be truncated: {error.strerror or error}") from error
        segment.allocated = segment.size

    def _close_segment(self, segment: SpoolSegment) -> None:
        if segment.descriptor is not None:
            with suppress(OSError):  # recovery cuts off the remaining zeros
                os.ftruncate(segment.descriptor, segment.size)
            os.close(segment.descriptor)
            segment.descriptor = None
            segment.allocated = segment.size


def _write_durably(descriptor: int, data: bytes, offset: int) -> None:
    """Write the data, and wait until it is on disk; with a single system call if the file system supports that."""
    view = memoryview(data)
    flags = _DSYNC
    while view:
        try:
            written = os.pwritev(descriptor, [view], offset, flags)
        except OSError as error:
            if not flags or error.errno not in _DSYNC_UNSUPPORTED:
                raise
            flags = 0
            continue
        view, offset = view[written:], offset + written
    if not flags:
        os.fdatasync(descriptor)


def new_segment(directory: Path, first: int) -> SpoolSegment:
    """A segment that has no file yet."""
    return SpoolSegment(first, segment_path(directory, first))
