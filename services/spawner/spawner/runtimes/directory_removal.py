"""Removes a directory with untrusted content, of any depth and with any permissions. It blocks."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_OWNER_ONLY: Final = 0o700
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_entry(path: Path) -> None:
    """Remove a file, a link or a directory with its content, if it exists. Raises `OSError`."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink()


def remove_tree(folder: Path) -> None:
    """Remove a directory; links in it are removed, not followed. No process may run in it. Raises `OSError`.

    Another removal of the directory may run at the same time: the thread of a removal that was cancelled or timed out
    continues. `shutil.rmtree` fails at a depth of a few hundred levels, because it has every level open. Here deeper
    directories are moved up first: never more than two directories are open, and no path is long.
    """
    top = _open(folder)
    try:
        while names := os.listdir(top):  # noqa: PTH208  # pathlib lists no descriptor
            for name in names:
                with suppress(FileNotFoundError):
                    _remove_from(top, name)
    finally:
        os.close(top)
    with suppress(FileNotFoundError):
        folder.rmdir()


def grant_owner_permissions(folder: Path) -> None:
    """Give the owner all permissions on a folder, which an agent may replace at any time. Raises `OSError`."""
    os.close(_open(folder))


def _remove_from(top: int, name: str) -> None:
    if _is_folder(top, name):
        _empty(top, name)
        os.rmdir(name, dir_fd=top)
    else:
        os.unlink(name, dir_fd=top)


def _empty(top: int, name: str) -> None:
    """Remove the files of a folder, and move its folders up beside it."""
    inside = _open(name, top)
    try:
        unique = secrets.token_hex(8)
        for number, inner in enumerate(os.listdir(inside)):  # noqa: PTH208  # pathlib lists no descriptor
            if _is_folder(inside, inner):
                os.close(_open(inner, inside))  # sets the permissions without which it can't be moved
                os.rename(inner, f"{unique}-{number}", src_dir_fd=inside, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=inside)
    finally:
        os.close(inside)


def _open(name: Path | str, within: int | None = None) -> int:
    """Open a folder, and give its owner all permissions. Never follows a link, even one that replaces it meanwhile.

    Opening with `O_PATH` needs no permission on the folder, and the descriptor still refers to it if an agent replaces
    the path. The mode of such a descriptor can be changed only through `/proc`.
    """
    handle = os.open(name, os.O_PATH | _FOLDER, dir_fd=within)
    try:
        path = f"/proc/self/fd/{handle}"
        os.chmod(path, _OWNER_ONLY)  # noqa: PTH101  # of the open folder
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
