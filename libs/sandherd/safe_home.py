"""Checks that a stack may use its home: no other user has prepared it, and no other user can change it.

The check comes before anything in the home is trusted or written. Each directory is opened without following links, and
other users lose write permission before its entries are read, so that they can't change them afterwards.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sandherd import postgres_uids

_DATABASE: Final = "postgres"
_UNCHECKED_BELOW: Final = frozenset({"artifacts", "kept", "repositories", "sandboxes", "sandboxes-disks", "toolchains"})
"""Directories whose content is not checked: files of other users (of sandboxes), links of installed programs, and any
number of artifacts."""
CREATED: Final = _UNCHECKED_BELOW | {"context.json", "creds", "identity", "logs", "nats", _DATABASE, "run"}
"""The entries that Sandherd creates in a home, besides `nats-1` and so on. Other entries, such as settings of a user,
are not checked."""
_OF_DATABASE: Final = frozenset({"data", "run"})
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS: Final = 40
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHER_HOME: Final = "name another home, in a directory that only this user can write, with `sandherd --home DIR`"


class UnsafeHomeError(OSError):
    """Another user has prepared the home or can change it: the path, the reason, and the fix."""

    def __init__(self, path: Path, reason: str, fix: str = "") -> None:
        super().__init__(errno.EINVAL, reason, str(path))
        self.remedy = f"{fix}, or {_OTHER_HOME}" if fix else _OTHER_HOME

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}: {self.remedy}"


def check_home(home: Path) -> None:
    """Raise `UnsafeHomeError` for a home that is not safe. A home that does not exist is safe if its parents are.

    Directories of our own that other users may write, because of an earlier version or a umask, lose that permission.
    """
    _check_links(home.absolute())
    place = home.resolve()
    for parent in place.parents:
        _check_parent(parent)
    with suppress(FileNotFoundError), _opened(place, None) as (top, _):
        _check_tree(place, top)


def _check_links(path: Path) -> None:
    """Raise for a link in the path that does not belong to us or root: its owner decides where the home is."""
    for _ in range(_MAX_LINKS):
        link = next((each for each in (*reversed(path.parents), path) if each.is_symlink()), None)
        if link is None:
            return
        if link.lstat().st_uid not in _own():
            raise UnsafeHomeError(link, f"is a symbolic link of user id {link.lstat().st_uid}")
        path = Path(os.path.normpath(link.parent.resolve() / link.readlink() / path.relative_to(link)))
    raise UnsafeHomeError(path, "has too many symbolic links")


def _check_parent(parent: Path) -> None:
    try:
        state = parent.stat()
    except FileNotFoundError:
        return
    can_be_replaced = state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX
    if can_be_replaced and state.st_uid not in _own():
        raise UnsafeHomeError(
            parent, f"belongs to user id {state.st_uid} and can be written by all: they can replace the home"
        )


def _check_tree(home: Path, descriptor: int) -> None:
    for name in sorted(os.listdir(descriptor)):  # of a descriptor
        if name in CREATED or name.startswith("nats-"):
            below = () if name in _UNCHECKED_BELOW else None
            _check_entry(home / name, descriptor, _own(), only=below)


def _check_entry(path: Path, parent: int, users: frozenset[int], only: tuple[()] | None = None) -> None:
    """Check an entry, and everything in it, unless it belongs to another user. `only=()` checks only the entry."""
    try:
        state = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(state.st_mode):
            raise UnsafeHomeError(path, "is a symbolic link", "delete it if it is not needed")
        _check_owner(path, state, users)
        if stat.S_ISDIR(state.st_mode) and state.st_uid in _own():
            _check_below(path, parent, only)
    except FileNotFoundError:
        return  # a process of the stack has just deleted it


def _check_below(path: Path, parent: int, only: tuple[()] | None) -> None:
    with _opened(path, parent) as (descriptor, was_open):
        for name in os.listdir(descriptor) if only is None else only:  # noqa: PTH208  # of a descriptor
            of_database = path.name == _DATABASE and name in _OF_DATABASE and not was_open
            _check_entry(path / name, descriptor, _own() | (postgres_uids.data_owners() if of_database else set()))


@contextmanager
def _opened(path: Path, parent: int | None) -> Iterator[tuple[int, bool]]:
    """Open a directory, which other users then can't write, and whether they could. Raises `FileNotFoundError`."""
    descriptor = os.open(path if parent is None else path.name, _DIRECTORY, dir_fd=parent)
    try:
        was_open = bool(os.fstat(descriptor).st_mode & _WRITABLE)
        with _closed_to_writers(path, descriptor):
            yield descriptor, was_open
    finally:
        os.close(descriptor)


@contextmanager
def _closed_to_writers(path: Path, descriptor: int) -> Iterator[None]:
    """Remove other users' write permission from a directory.

    If the directory is refused, its mode is restored: otherwise the next check would trust its content.
    """
    state = os.fstat(descriptor)
    mode = stat.S_IMODE(state.st_mode)
    _check_owner(path, state, _own())
    if not mode & _WRITABLE or (state.st_uid != os.geteuid() and not mode & stat.S_IWOTH):
        yield
        return
    if state.st_uid != os.geteuid():
        raise UnsafeHomeError(path, "can be written by all", f"run `chmod o-w {path}` as its owner")
    os.fchmod(descriptor, mode & ~_WRITABLE)
    try:
        yield
    except UnsafeHomeError:
        os.fchmod(descriptor, mode)
        raise


def _check_owner(path: Path, state: os.stat_result, users: frozenset[int]) -> None:
    if state.st_uid not in users:
        raise UnsafeHomeError(path, f"belongs to user id {state.st_uid}", "delete it if it is not needed")


def _own() -> frozenset[int]:
    """The ids of our own user and of root, who can change everything anyway."""
    return frozenset({os.geteuid(), 0})
