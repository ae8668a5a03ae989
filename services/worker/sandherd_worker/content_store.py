"""Stores the last seen contents of files: all in one file, so that many small contents cost little."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NOWHERE: Final = (1 << 64) - 1
"""The location of a content that is not stored."""
_LENGTH_BITS: Final = 24
"""The low bits of a location, which are the content's length; the high bits are its offset in the file."""
_MIN_WASTED_BYTES: Final = 1024 * 1024
"""The store is not compacted for less than this."""


class ContentStore:
    """Contents of files by their locations. A dropped content stays on disk until the store is `compacted`."""

    def __init__(self, directory: Path, limit: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._limit = directory, limit
        self._file = _open_new(directory)
        self._end = self._live_bytes = 0

    def store(self, content: bytes) -> int:
        """Store content, and return its location; `NOWHERE` if the store or the disk is full."""
        if self._live_bytes + len(content) > self._limit:
            return NOWHERE
        try:
            written = os.pwrite(self._file, content, self._end)
        except OSError:
            return NOWHERE
        if written < len(content):
            return NOWHERE
        location = self._end << _LENGTH_BITS | len(content)
        self._end += len(content)
        self._live_bytes += len(content)
        return location

    def load(self, location: int) -> bytes | None:
        """The content at a location; None for `NOWHERE`, or if it can't be read."""
        if location == NOWHERE:
            return None
        offset, length = location >> _LENGTH_BITS, location & ((1 << _LENGTH_BITS) - 1)
        try:
            content = os.pread(self._file, length, offset)
        except OSError:
            return None
        return content if len(content) == length else None

    def drop(self, location: int) -> None:
        """Mark the content at this location as no longer needed."""
        if location != NOWHERE:
            self._live_bytes -= location & ((1 << _LENGTH_BITS) - 1)

    @property
    def wasteful(self) -> bool:
        """Whether dropped contents take more space than the other contents, and enough to compact the store."""
        return self._end - self._live_bytes > max(self._live_bytes, _MIN_WASTED_BYTES)

    def compacted(self, locations: Iterator[int]) -> Iterator[int]:
        """Copy the contents at these locations to a new file; yields the new locations, in the same order."""
        old, self._file = self._file, _open_new(self._directory)
        self._end = self._live_bytes = 0
        try:
            for location in locations:
                new, self._file = self._file, old
                content = self.load(location)
                self._file = new
                yield NOWHERE if content is None else self.store(content)
        finally:
            os.close(old)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _open_new(directory: Path) -> int:
    """Open a new file without a name, so that it is removed when the process ends."""
    path = directory / "contents"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    path.unlink()
    return descriptor
