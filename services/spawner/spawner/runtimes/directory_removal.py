"""Removes a directory with untrusted content, of any depth and with any permissions. Its functions block."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_OWNER_ONLY: Final = 0o700
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_entry(path: Path) -> None:
    """Remove a file, a link or a directory with its content, if it exists. Raises `OSError`."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink()


def remove_tree(folder: Path) -> None:
    """Remove a directory; links in it are removed, not followed. No process may run in it. Raises `OSError`.

    Another removal of the directory may run at the same time, because the thread of a removal that was cancelled or
    timed out continues. `shutil.rmtree` has every level open, and fails at a depth of a few hundred. Here, deeper
    directories are moved up first, so that at most two directories are open, and no path is long.
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
    """Remove an entry of the top directory. The folders in it become entries of the top directory."""
    if _is_folder(top, name):
        _empty(top, name)
        os.rmdir(name, dir_fd=top)
    else:
        os.unlink(name, dir_fd=top)


def _empty(top: int, name: str) -> None:
    """Remove the files of a folder, and move its folders up beside it, each under a new name."""
    folder = _open(name, top)
    try:
        unique = secrets.token_hex(8)
        for number, entry in enumerate(os.listdir(folder)):  # noqa: PTH208  # pathlib lists no descriptor
            if _is_folder(folder, entry):
                os.close(_open(entry, folder))  # sets the permissions without which the folder can't be moved
                os.rename(entry, f"{unique}-{number}", src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(entry, dir_fd=folder)
    finally:
        os.close(folder)


def _open(name: Path | str, parent: int | None = None) -> int:
    """Open a folder, and give its owner all permissions. Never follows a link, even if one replaces the folder.

    Opening with `O_PATH` needs no permission on the folder, and the descriptor still refers to it if an agent replaces
    the path. The mode of the folder behind such a descriptor can be changed only through `/proc`.
    """
    handle = os.open(name, os.O_PATH | _OPEN_FOLDER, dir_fd=parent)
    try:
        path = f"/proc/self/fd/{handle}"
        os.chmod(path, _OWNER_ONLY)  # noqa: PTH101  # the path of a descriptor
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
