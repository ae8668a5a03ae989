"""Removing a directory that a stranger has filled: however deep, whatever rights it took away. It blocks."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

_OWN: Final = 0o700
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_entry(path: Path) -> None:
    """Remove a file, a link or a whole directory, if it is there. Raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove it; links in it are removed, not followed. Nothing may run in it any more. Raises `OSError`.

    `shutil.rmtree` recurses and holds every level open, so that a few hundred levels are too many for it. Here what
    lies deeper is moved up first: never more than two directories are open, and no path is long.
    """
    folder.chmod(_OWN)
    top = os.open(folder, _FOLDER)
    try:
        while names := os.listdir(top):  # noqa: PTH208  # of a folder that is open
            for name in names:
                if _is_folder(top, name):
                    _empty(top, name)
                    os.rmdir(name, dir_fd=top)
                else:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _empty(top: int, name: str) -> None:
    """Remove the files of a folder, and move its folders beside it."""
    os.chmod(name, _OWN, dir_fd=top)
    inside = os.open(name, _FOLDER, dir_fd=top)
    try:
        unused = secrets.token_hex(8)
        for number, inner in enumerate(os.listdir(inside)):  # noqa: PTH208  # pathlib lists no descriptor
            if _is_folder(inside, inner):
                os.chmod(inner, _OWN, dir_fd=inside)  # without it, it may not be moved
                os.rename(inner, f"{unused}-{number}", src_dir_fd=inside, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=inside)
    finally:
        os.close(inside)


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
