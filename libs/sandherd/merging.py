"""Moving all that is in one folder into another: nothing is written through a link, and a clash is seen before."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ClashError(Exception):
    """What is a folder on one side is none on the other. The text is its path."""


def merge(source: int, target: int) -> None:
    """Move all, folder into folder; each file and link takes the place of what has its name. On one file system.

    Raises `ClashError` before anything is moved, and `OSError`.
    """
    _check(source, target, "")
    _move(source, target)


def _check(source: int, target: int, path: str) -> None:
    for name in os.listdir(source):
        here, there = _is_folder(source, name), _is_folder(target, name)
        if there is not None and here is not there:
            raise ClashError(f"{path}{name}")
        if here and there:
            with _opened(source, name) as inner, _opened(target, name) as outer:
                _check(inner, outer, f"{path}{name}/")


def _move(source: int, target: int) -> None:
    for name in os.listdir(source):
        if _is_folder(source, name) and _is_folder(target, name):
            with _opened(source, name) as inner, _opened(target, name) as outer:
                _move(inner, outer)
        else:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _is_folder(folder: int, name: str) -> bool | None:
    """None where nothing has this name. A link to a folder is none."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


@contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    found = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield found
    finally:
        os.close(found)
