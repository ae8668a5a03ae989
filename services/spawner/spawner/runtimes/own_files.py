"""Files in a sandbox's own folders on this host, where an agent may have planted anything. No link is followed.

Every step of a path is opened by itself, without following: what an agent puts in its place meanwhile changes nothing.
"""

import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from spawner.runtimes.commands import File, parts_of
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import Place

_OWN: Final = 0o700
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not blocking: a pipe that an agent has put there would hold us up."""
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NONE: Final = frozenset({errno.ENOENT})
_PLANTED: Final = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.ENXIO}
)


def put(place: Place, files: Collection[File]) -> None:
    """Write them, each whole or not at all. Raises `RuntimeFailedError`."""
    for file in files:
        *folders, name = parts_of(file.path)
        with _faults(file.path), _opened(place, folders, make=True) as folder:
            _write(place, folder, name, file)


def read(place: Place, path: str, limit: int) -> bytes | None:
    """A file's content, or None if there is none. Raises `RuntimeFailedError` for what is none, or too large."""
    *folders, name = parts_of(path)
    try:
        with _faults(path), _opened(place, folders, make=False) as folder:
            return _read(folder, name, path, limit)
    except FileNotFoundError:
        return None


def _read(folder: int, name: str, path: str, limit: int) -> bytes:
    descriptor = os.open(name, _READ, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"{path} is no file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"{path} weighs more than the limit of {limit} bytes")
    return content


def _write(place: Place, folder: int, name: str, file: File) -> None:
    """Where no agent sees it at first: what it finds under the name is whole."""
    part = place.folder / "run" / f"put.{secrets.token_hex(8)}"
    descriptor = os.open(part, _WRITE, file.mode)
    try:
        with os.fdopen(descriptor, "wb") as written:
            written.write(file.content)
            place.give(descriptor)
            os.fchmod(descriptor, file.mode)
        os.rename(part, name, dst_dir_fd=folder)
    except BaseException:  # whatever it was goes on, but leaves no half of a file behind
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _opened(place: Place, folders: list[str], *, make: bool) -> Iterator[int]:
    """The folder at the end of these steps. Raises `OSError`."""
    found = os.open(place.folder, _FOLDER)
    try:
        for step in folders:
            made = make and _make_folder(found, step)
            inner = os.open(step, _FOLDER, dir_fd=found)
            if made:
                place.give(inner)
            os.close(found)
            found = inner
        yield found
    finally:
        os.close(found)


def _make_folder(folder: int, step: str) -> bool:
    with suppress(FileExistsError):
        os.mkdir(step, _OWN, dir_fd=folder)
        return True
    return False


@contextmanager
def _faults(path: str) -> Iterator[None]:
    """What goes wrong as `RuntimeFailedError`, but for what is not there (`FileNotFoundError`)."""
    try:
        yield
    except OSError as error:
        if error.errno in _NONE:
            raise
        planted = error.errno in _PLANTED
        why = "a link, or no folder or file where one has to be" if planted else error.strerror
        raise RuntimeFailedError(
            RuntimeFault.REFUSED if planted else RuntimeFault.UNAVAILABLE, f"{path[:200]!r}: {why}"
        ) from error
