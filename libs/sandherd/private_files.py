"""Files and directories that have their final mode from the moment they exist, whatever the umask of the process.

A file is written to a draft beside it that only its owner can open, given its mode, and renamed: under its own name it
never has another mode. A directory is created with its mode, which a umask can only narrow, and then set to exactly it.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

FILE: Final = 0o600
DIRECTORY: Final = 0o700
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(path: Path, content: str | bytes | IO[bytes], mode: int = FILE) -> None:
    """Write a file atomically; from an open file, in pieces. Missing parent directories are created (0700)."""
    make_directory(path.parent)
    draft = path.with_name(f".{path.name}.new")
    with _locked(path.parent):
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, _DRAFT, FILE), "wb") as file:
            if isinstance(content, (str, bytes)):
                file.write(content.encode() if isinstance(content, str) else content)
            else:
                shutil.copyfileobj(content, file)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        draft.replace(path)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """A lock for those that read, change and write a file, on `.NAME.lock` beside it. Raises `OSError`."""
    make_directory(path.parent)
    found = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE)
    try:
        fcntl.flock(found, fcntl.LOCK_EX)
        yield
    finally:
        os.close(found)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """A lock for writers of one directory: two must not share a draft. A killed writer's lock is released."""
    found = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(found, fcntl.LOCK_EX)
        yield
    finally:
        os.close(found)


def make_directory(path: Path, mode: int = DIRECTORY) -> None:
    """Create a directory, and its parents (0700), unless they exist. Raises `FileExistsError` for a file."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return  # another process has just created it
    if stat.S_IMODE(path.lstat().st_mode) != mode:
        path.chmod(mode)


def copy_directory(source: Path, target: Path) -> None:
    """Copy a directory; the copies are private, whatever the modes of the originals. Files are replaced."""
    make_directory(target)
    for each in source.iterdir():
        if each.is_dir():
            copy_directory(each, target / each.name)
        else:
            with each.open("rb") as file:
                write_file(target / each.name, file)


def open_log(path: Path) -> int:
    """A descriptor that appends to a file, which is created (0600) if it is missing."""
    make_directory(path.parent)
    try:
        found = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE)
    except FileExistsError:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    os.fchmod(found, FILE)
    return found
