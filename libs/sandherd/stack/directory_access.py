"""Owners and permissions of directories: Postgres does not run as root, so root has to give it access."""

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from sandherd.telemetry import logs

_PRIVATE: Final = 0o700
_log: Final = logs.get("postgres")


def grant_traversal(path: Path, uid: int) -> None:
    """Let a user through every directory on the way to `path`: with execute permission, not read permission.

    Only for root, whose home is closed to the user that Postgres runs as.
    """
    for parent in path.resolve().parents:
        state = parent.stat()
        if state.st_uid != uid and not state.st_mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(state.st_mode) | stat.S_IXOTH)
            _log.warning("execute permission for others added to directory", directory=str(parent), because=uid)


def grant_read(tree: Path) -> None:
    """Let others read and execute what is installed here, where a strict umask prevented it."""
    for path in (tree, *tree.rglob("*")):
        state = path.lstat()
        wanted = stat.S_IROTH | (stat.S_IXOTH if state.st_mode & stat.S_IXUSR else 0)
        if not stat.S_ISLNK(state.st_mode) and state.st_mode & wanted != wanted:
            path.chmod(stat.S_IMODE(state.st_mode) | wanted)


def change_owner(directory: Path, uid: int | None, before: frozenset[int] = frozenset()) -> None:
    """Give a directory and its files to the user of the server; refuse a directory of an unexpected owner.

    `before` are the users that an earlier version ran the server as. Raises `PermissionError` for a directory of any
    other user, or for a file of any other user below it.
    """
    state = directory.lstat()
    wanted = os.geteuid() if uid is None else uid
    expected = {os.geteuid(), wanted, *before}
    if not stat.S_ISDIR(state.st_mode) or state.st_uid not in expected:
        raise _foreign(directory, state.st_uid, wanted)
    if state.st_uid != wanted:
        # First the top, with mode 0700: from then on no other user can change anything below it during the walk.
        os.chown(directory, wanted, -1)
        directory.chmod(_PRIVATE)
        _change_owner_below(directory, wanted, expected)
    directory.chmod(_PRIVATE)


def renew(directory: Path, uid: int | None, before: frozenset[int]) -> None:
    """Create the directory, or change its owner to `uid`. It is emptied first if its owner is one of `before`.

    This is for a directory whose files the server of another user can't use.
    """
    if directory.is_dir() and not directory.is_symlink() and directory.lstat().st_uid in before:
        shutil.rmtree(directory)
    directory.mkdir(exist_ok=True, mode=_PRIVATE)
    change_owner(directory, uid, before)


def _change_owner_below(top: Path, wanted: int, expected: set[int]) -> None:
    """Change the owner of everything below a directory. Links are not followed, and files of others are refused."""
    for folder, folders, files, descriptor in os.fwalk(top, follow_symlinks=False):
        for name in (*folders, *files):
            owner = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
            if owner not in expected:
                raise _foreign(Path(folder, name), owner, wanted)
            os.chown(name, wanted, -1, dir_fd=descriptor, follow_symlinks=False)


def _foreign(path: Path, owner: int, wanted: int) -> PermissionError:
    remedy = f"give it to user id {wanted} with `chown` if it is of this herd, or use another home"
    return PermissionError(f"{path} belongs to user id {owner}; {remedy}")
