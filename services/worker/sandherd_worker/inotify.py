"""The kernel's notifications about directories: a thin layer over inotify(7). On another system, `OSError`."""

import ctypes
import os
import select
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

OVERFLOW: Final = 0x4000
"""Events were dropped, as they were not read."""
ENDED: Final = 0x8000
"""This watch has ended, as its directory was removed."""
DIRECTORY: Final = 0x40000000
"""The name is that of a directory."""
_CHANGES: Final = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""Content, attributes, closed after writing, moved from and to, created, deleted; itself deleted, moved."""
_HOW: Final = 0x01000000 | 0x02000000 | 0x04000000
"""Only if it is a directory, not through a link, and nothing about files that are open but deleted."""
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024


class InotifyEvent(NamedTuple):
    """What has happened in a directory: the number of its watch, -1 for an overflow; and the name, if it has one."""

    watch: int
    what: int
    name: str


class Inotify:
    """One instance. Raises `OSError` if there are too many for this user."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError("there is no inotify on this system")
        self._libc: Final = ctypes.CDLL(None, use_errno=True)
        self.descriptor: Final = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def watch(self, directory: str | os.PathLike[str]) -> int:
        """Watch the entries of a directory; again returns the same number. Raises `OSError`."""
        return self._checked(self._libc.inotify_add_watch(self.descriptor, os.fsencode(directory), _CHANGES | _HOW))

    def read(self) -> bytes:
        """Events that wait, in the kernel's format: at most 64 KiB; empty if none does."""
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
    """The events that `read` has returned."""
    offset = 0
    while offset < len(events):
        watch, what, _, length = _EVENT.unpack_from(events, offset)
        offset += _EVENT.size
        name = events[offset : offset + length].rstrip(b"\0")
        offset += length
        yield InotifyEvent(watch, what, os.fsdecode(name))
