"""Creates files and directories that have their final mode from the beginning, whatever the umask of the process.

A file is written under a temporary name that only its owner can open. Then its mode is set, and it is renamed. A
directory is created with its mode, from which the umask can only remove permissions, and then the exact mode is set.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

FILE: Final = 0o600
DIRECTORY: Final = 0o700
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(path: Path, content: str | bytes | IO[bytes], mode: int = FILE) -> None:
    """Write a file atomically. `content` may be an open file. Missing parent directories are created (0700)."""
    make_directory(path.parent)
    draft = path.with_name(f".{path.name}.new")
    with _locked(path.parent):
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, _DRAFT, FILE), "wb") as file:
            if isinstance(content, (str, bytes)):
                file.write(content.encode() if isinstance(content, str) else content)
            else:
                import shutil  # only then, because it loads modules of compression

                shutil.copyfileobj(content, file)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        draft.replace(path)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock to read, change and write a file, by the file `.NAME.lock` beside it. Raises `OSError`."""
    make_directory(path.parent)
    found = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE)
    try:
        fcntl.flock(found, fcntl.LOCK_EX)
        yield
    finally:
        os.close(found)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, so that two writers do not use one draft. It ends when its holder is killed."""
    found = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(found, fcntl.LOCK_EX)
        yield
    finally:
        os.close(found)


def sync_directory(path: Path) -> None:
    """Make created, renamed or removed entries of a directory durable. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int = DIRECTORY) -> None:
    """Create a directory, and its parents (0700), unless they exist. Raises `FileExistsError` if it is a file."""
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
    """Copy a directory. Existing files are replaced. Copies are private, whatever the modes of the originals."""
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
