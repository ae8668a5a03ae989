"""Splits what is read from a pipe into lines.

A `StreamReader` that returns lines has to buffer the longest possible line, and moves its whole buffer whenever it
receives data. With lines of up to 1 MiB, that takes more CPU time than everything else that is done with a short line.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """A line that was dropped because it is too long. `size` is in bytes, including its line feed if it has one."""

    size: int


class LineSplitter:
    """Takes data as it arrives, and returns its lines without their line feeds.

    Of a line of more than `longest` bytes only the size is stored.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._incomplete = bytearray()
        """The beginning of the last line, which is incomplete; empty if the line is too long."""
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes | OverlongLine]:
        """The lines that `data` completes. The caller must read all of them before the next call."""
        *lines, last = data.split(b"\n")
        for line in lines:
            if self._size or len(line) > self._longest:
                self._add(line)
                yield self._take(feed=1)
            else:
                yield line
        self._add(last)

    def rest(self) -> bytes | OverlongLine:
        """The data after the last line feed. Call it when no more data follows."""
        return self._take(feed=0)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._longest:
            self._incomplete += part
        else:
            self._incomplete.clear()

    def _take(self, *, feed: int) -> bytes | OverlongLine:
        found = bytes(self._incomplete) if self._size <= self._longest else OverlongLine(self._size + feed)
        self._incomplete.clear()
        self._size = 0
        return found
