"""Stores the last seen contents of files: all in one file, so that many small contents cost little."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NOWHERE: Final = (1 << 64) - 1
"""The place of a content that is not stored."""
_LENGTH_BITS: Final = 24
_MIN_WASTED_BYTES: Final = 1024 * 1024


class ContentStore:
    """Contents of files by their places. Dropped ones stay on disk until a `wasteful` store is compacted (`moved`)."""

    def __init__(self, directory: Path, limit: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._limit = directory, limit
        self._file = _opened(directory)
        self._end = self._live = 0

    def store(self, content: bytes) -> int:
        """Store content, and return its place; `NOWHERE` if the store is full."""
        if self._live + len(content) > self._limit:
            return NOWHERE
        try:
            written = os.pwrite(self._file, content, self._end)
        except OSError:
            return NOWHERE
        if written < len(content):
            return NOWHERE
        place = self._end << _LENGTH_BITS | len(content)
        self._end += len(content)
        self._live += len(content)
        return place

    def load(self, place: int) -> bytes | None:
        """The content at a place; None for `NOWHERE`."""
        if place == NOWHERE:
            return None
        offset, length = place >> _LENGTH_BITS, place & ((1 << _LENGTH_BITS) - 1)
        try:
            content = os.pread(self._file, length, offset)
        except OSError:
            return None
        return content if len(content) == length else None

    def drop(self, place: int) -> None:
        """Mark the content at this place as no longer needed."""
        if place != NOWHERE:
            self._live -= place & ((1 << _LENGTH_BITS) - 1)

    @property
    def wasteful(self) -> bool:
        """Whether dropped contents take more space than stored ones, and enough to compact the store."""
        return self._end - self._live > max(self._live, _MIN_WASTED_BYTES)

    def moved(self, places: Iterator[int]) -> Iterator[int]:
        """Move the contents of these places to a new file; yields the new places, in the same order."""
        old, self._file = self._file, _opened(self._directory)
        self._end = self._live = 0
        try:
            for place in places:
                new, self._file = self._file, old
                content = self.load(place)
                self._file = new
                yield NOWHERE if content is None else self.store(content)
        finally:
            os.close(old)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _opened(directory: Path) -> int:
    """A new file without a name, so that it is removed when the process ends."""
    path = directory / "contents"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    path.unlink()
    return descriptor
