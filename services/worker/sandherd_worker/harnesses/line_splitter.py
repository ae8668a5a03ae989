"""Splits what is read from a pipe into lines.

A `StreamReader` that returns lines has to buffer the longest possible one, and moves all that it has buffered whenever
it receives more: with lines of up to 1 MiB that takes more CPU time than anything else that is done with a short one.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """A line that was dropped. `size` is in bytes, with its line feed if it had one."""

    size: int


class LineSplitter:
    """Takes data as it arrives, and returns its lines without their line feeds.

    Of a line of more than `longest` bytes only the size is stored.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._begun = bytearray()
        """The beginning of the last line, which is not complete; nothing of one that is too long."""
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes | OverlongLine]:
        """The lines that this completes. All of them have to be taken before the next call."""
        *lines, last = data.split(b"\n")
        for line in lines:
            if self._size or len(line) > self._longest:
                self._add(line)
                yield self._take(feed=1)
            else:
                yield line
        self._add(last)

    def rest(self) -> bytes | OverlongLine:
        """What follows the last line feed, at the end of the data."""
        return self._take(feed=0)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._longest:
            self._begun += part
        else:
            self._begun.clear()

    def _take(self, *, feed: int) -> bytes | OverlongLine:
        found = bytes(self._begun) if self._size <= self._longest else OverlongLine(self._size + feed)
        self._begun.clear()
        self._size = 0
        return found
