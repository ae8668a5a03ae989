"""The kernel's notifications about directories: a thin layer over inotify(7), on Linux only."""

import ctypes
import os
import select
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

OVERFLOW: Final = 0x4000
"""The flag of an overflow: events were dropped because they were not read in time."""
ENDED: Final = 0x8000
"""The flag of the end of a watch: its directory was removed."""
_WATCHED_CHANGES: Final = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""The watched changes: content, attributes, close after writing, move from and to, creation, deletion, and the
deletion and the move of the directory itself.
"""
_WATCH_OPTIONS: Final = 0x01000000 | 0x02000000 | 0x04000000
"""Watch directories only, follow no link, and report nothing about files that are open but deleted."""
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024


class InotifyEvent(NamedTuple):
    """An event in a directory: the number of the watch (-1 for an overflow), the flags, and the entry's name."""

    watch: int
    flags: int
    name: str


class Inotify:
    """One inotify instance. Raises `OSError` if this user has too many instances, or if the system is not Linux."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError("there is no inotify on this system")
        self._libc: Final = ctypes.CDLL(None, use_errno=True)
        self.descriptor: Final = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def watch(self, directory: str | os.PathLike[str]) -> int:
        """Watch the entries of a directory; returns the number of the watch, one per directory. Raises `OSError`."""
        return self._checked(
            self._libc.inotify_add_watch(self.descriptor, os.fsencode(directory), _WATCHED_CHANGES | _WATCH_OPTIONS)
        )

    def read(self) -> bytes:
        """The waiting events in the kernel's format, up to 64 KiB; empty if there are none."""
        try:
            return os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return b""

    def waiting(self) -> bool:
        """Whether there are events to read."""
        return bool(select.select([self.descriptor], [], [], 0)[0])

    def close(self) -> None:
        """End all watches."""
        os.close(self.descriptor)

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result


def notices(events: bytes) -> Iterator[InotifyEvent]:
    """Decodes the events that `read` has returned."""
    offset = 0
    while offset < len(events):
        watch, flags, _, length = _EVENT.unpack_from(events, offset)
        offset += _EVENT.size
        name = events[offset : offset + length].rstrip(b"\0")
        offset += length
        yield InotifyEvent(watch, flags, os.fsdecode(name))
