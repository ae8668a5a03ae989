"""Whose a directory is, and who may pass through it: Postgres does not run as root, so root has to let it in."""

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from sandherd.telemetry import logs

_PRIVATE: Final = 0o700
_log: Final = logs.get("postgres")


def let_enter(path: Path, uid: int) -> None:
    """Let a user through every directory on the way to `path`: the right to pass, not the right to list.

    Only for root, whose home is closed to the user that Postgres runs as.
    """
    for parent in path.resolve().parents:
        state = parent.stat()
        if state.st_uid != uid and not state.st_mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(state.st_mode) | stat.S_IXOTH)
            _log.warning("others may now pass through this directory", directory=str(parent), because=uid)


def let_read(tree: Path) -> None:
    """Let others read and run what is installed here, where a strict umask forbade it."""
    for path in (tree, *tree.rglob("*")):
        state = path.lstat()
        wanted = stat.S_IROTH | (stat.S_IXOTH if state.st_mode & stat.S_IXUSR else 0)
        if not stat.S_ISLNK(state.st_mode) and state.st_mode & wanted != wanted:
            path.chmod(stat.S_IMODE(state.st_mode) | wanted)


def give_to(directory: Path, uid: int | None, before: frozenset[int] = frozenset()) -> None:
    """Give a directory and its files to the user of the server; refuse one that somebody else made there.

    `before` are the users that an earlier version ran the server as. Raises `PermissionError` for a directory of
    anybody else, or for a file of anybody else below it.
    """
    state = directory.lstat()
    wanted = os.geteuid() if uid is None else uid
    expected = {os.geteuid(), wanted, *before}
    if not stat.S_ISDIR(state.st_mode) or state.st_uid not in expected:
        raise PermissionError(f"{directory} belongs to user id {state.st_uid}; remove it")
    if state.st_uid != wanted:
        # First the top, and closed: from then on no other user changes anything below it while it is walked.
        os.chown(directory, wanted, -1)
        directory.chmod(_PRIVATE)
        _give_tree(directory, wanted, expected)
    directory.chmod(_PRIVATE)


def renew(directory: Path, uid: int | None, before: frozenset[int]) -> None:
    """The same for a directory whose files are of no use to a later server: those of an earlier user are removed."""
    if directory.is_dir() and not directory.is_symlink() and directory.lstat().st_uid in before:
        shutil.rmtree(directory)
    directory.mkdir(exist_ok=True, mode=_PRIVATE)
    give_to(directory, uid, before)


def _give_tree(top: Path, wanted: int, expected: set[int]) -> None:
    """Change the owner of everything below a directory. No link is followed, and a file of others is refused."""
    for folder, folders, files, descriptor in os.fwalk(top, follow_symlinks=False):
        for name in (*folders, *files):
            owner = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
            if owner not in expected:
                raise PermissionError(f"{Path(folder, name)} belongs to user id {owner}; remove it")
            os.chown(name, wanted, -1, dir_fd=descriptor, follow_symlinks=False)
