"""Gives Postgres access to its directories: if root starts it, it runs as another user."""

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from sandherd.telemetry import logs

_PRIVATE: Final = 0o700
_log: Final = logs.get("postgres")


def grant_traversal(path: Path, uid: int) -> None:
    """Give all users execute permission, but not read permission, for the parent directories of `path`.

    Directories of the user `uid` are not changed. It is needed if root starts the stack, because other users can't
    enter root's home.
    """
    for parent in path.resolve().parents:
        state = parent.stat()
        if state.st_uid != uid and not state.st_mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(state.st_mode) | stat.S_IXOTH)
            _log.warning("execute permission for others added to directory", directory=str(parent), because=uid)


def grant_read(tree: Path) -> None:
    """Give all users permission to read a directory tree, and to execute the programs in it.

    A strict umask may have prevented that during the installation.
    """
    for path in (tree, *tree.rglob("*")):
        state = path.lstat()
        needed = stat.S_IROTH | (stat.S_IXOTH if state.st_mode & stat.S_IXUSR else 0)
        if not stat.S_ISLNK(state.st_mode) and state.st_mode & needed != needed:
            path.chmod(stat.S_IMODE(state.st_mode) | needed)


def change_owner(directory: Path, uid: int | None, earlier_users: frozenset[int] = frozenset()) -> None:
    """Change the owner of a directory and its files to `uid`, or to our own user if that is None.

    `earlier_users` are the user ids that earlier versions ran the server as. Raises `PermissionError` if the directory
    or a file in it belongs to any other user.
    """
    state = directory.lstat()
    owner = os.geteuid() if uid is None else uid
    expected = {os.geteuid(), owner, *earlier_users}
    if not stat.S_ISDIR(state.st_mode) or state.st_uid not in expected:
        raise _wrong_owner_error(directory, state.st_uid, owner)
    if state.st_uid != owner:
        # The top directory first, with mode 0700: then no other user can change anything in it during the walk.
        os.chown(directory, owner, -1)
        directory.chmod(_PRIVATE)
        _change_owner_below(directory, owner, expected)
    directory.chmod(_PRIVATE)


def renew(directory: Path, uid: int | None, earlier_users: frozenset[int]) -> None:
    """Create a directory, or change its owner to `uid`. A directory of one of the `earlier_users` is deleted first.

    It is used for a directory whose files are useless to a server that runs as another user.
    """
    if directory.is_dir() and not directory.is_symlink() and directory.lstat().st_uid in earlier_users:
        shutil.rmtree(directory)
    directory.mkdir(exist_ok=True, mode=_PRIVATE)
    change_owner(directory, uid, earlier_users)


def _change_owner_below(top: Path, new_owner: int, expected: set[int]) -> None:
    """Change the owner of everything below a directory. Links are not followed, and files of others are refused."""
    for folder, folders, files, descriptor in os.fwalk(top, follow_symlinks=False):
        for name in (*folders, *files):
            current_owner = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
            if current_owner not in expected:
                raise _wrong_owner_error(Path(folder, name), current_owner, new_owner)
            os.chown(name, new_owner, -1, dir_fd=descriptor, follow_symlinks=False)


def _wrong_owner_error(path: Path, current_owner: int, expected_owner: int) -> PermissionError:
    remedy = (
        f"change its owner to user id {expected_owner} with `chown` if it belongs to this herd, or use another home"
    )
    return PermissionError(f"{path} belongs to user id {current_owner}; {remedy}")
