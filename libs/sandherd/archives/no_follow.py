"""Opens files and directories where an adversary may have placed links, pipes or devices.

A name is one component, relative to a directory that is held open, so that replacing a parent has no effect.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

READ_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags to open a file for reading: fails for a link, and does not wait for the writer of a named pipe.

The caller checks what it has opened: it may be a directory or a device.
"""
READ_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a directory: fails for a link and for anything else."""


@contextmanager
def opened_directory(parent: int, name: str) -> Iterator[int]:
    """The descriptor of a directory in an open directory, held open. Raises `OSError`, also if `name` is a link."""
    descriptor = os.open(name, READ_DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_directory(parent: int, name: str) -> bool | None:
    """Whether an entry is a directory; None if it does not exist. A link to a directory is not one."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def is_link(parent: int, name: str) -> bool:
    """Whether an entry exists and is a symbolic link."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
