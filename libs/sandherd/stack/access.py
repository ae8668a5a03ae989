"""Whose a directory is, and who may pass through it: Postgres does not run as root, so root has to let it in."""

import os
import pwd
import stat
from pathlib import Path
from typing import Final

from sandherd.telemetry import logs

_log: Final = logs.get("postgres")


def runs_as_root() -> bool:
    """Whether we are the superuser."""
    return os.geteuid() == 0


def let_enter(path: Path, user: str) -> None:
    """Let a user through every directory on the way to `path`: the right to pass, not the right to list.

    Only for root, whose home is closed to the user that Postgres runs as.
    """
    ours = pwd.getpwnam(user)
    for parent in path.resolve().parents:
        state = parent.stat()
        if state.st_uid != ours.pw_uid and not state.st_mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(state.st_mode) | stat.S_IXOTH)
            _log.warning("others may now pass through this directory", directory=str(parent), because=user)


def let_read(tree: Path) -> None:
    """Let others read and run what is installed here, where a strict umask forbade it."""
    for path in (tree, *tree.rglob("*")):
        state = path.lstat()
        wanted = stat.S_IROTH | (stat.S_IXOTH if state.st_mode & stat.S_IXUSR else 0)
        if not stat.S_ISLNK(state.st_mode) and state.st_mode & wanted != wanted:
            path.chmod(stat.S_IMODE(state.st_mode) | wanted)


def give_to(directory: Path, user: str | None) -> None:
    """Give a new directory to the user of the server, and refuse one that somebody else laid there."""
    state = directory.lstat()
    wanted = pwd.getpwnam(user).pw_uid if user else os.geteuid()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid not in {os.geteuid(), wanted}:
        raise PermissionError(f"{directory} belongs to somebody else; remove it")
    if state.st_uid != wanted:
        os.chown(directory, wanted, -1)
    directory.chmod(0o700)
