"""Folders as tar archives. All of it blocks; it runs in a thread.

Links are packed as links and never followed. What is unpacked goes through `sandherd.unpacking`.
"""

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import IO, Final

from sandherd import unpacking
from sandherd.contracts.errors import Code, ContractError
from sandherd.inside import LeadsOutError

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TooLargeError(Exception):
    """The archive would be larger than it may be."""


class TooLateError(Exception):
    """There is no time left to make it."""


@dataclass(frozen=True)
class Packed:
    """How many files an archive holds, and what could not be read."""

    files: int
    unread: tuple[str, ...] = ()


class _Bounded(io.RawIOBase):
    """Hands on what is written to it, up to a limit and until it is too late."""

    def __init__(self, out: IO[bytes], limit: int, late: Callable[[], bool]) -> None:
        self._out, self._left, self._late = out, limit, late

    def write(self, data: object) -> int:
        """Hand it on. Raises `TooLargeError` or `TooLateError`."""
        view = memoryview(data)  # type: ignore[arg-type]  # bytes of some kind, as `write` is given
        self._left -= view.nbytes
        if self._left < 0:
            raise TooLargeError
        if self._late():
            raise TooLateError
        return self._out.write(view)

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the underlying file stands."""
        return self._out.tell()


def pack(
    root: Path,
    out: IO[bytes],
    *,
    limit: int,
    skips: Callable[[str, bool], bool] = lambda _path, _directory: False,
    late: Callable[[], bool] = lambda: False,
    compress: bool = False,
) -> Packed:
    """Write a tar archive of a folder, its entries relative and in order. `skips(path, is_directory)` leaves out.

    Raises `TooLargeError` beyond `limit` bytes, `TooLateError`, and `OSError` if `out` can't be written.
    """
    files = 0
    unread: list[str] = []
    with _opened(_Bounded(out, limit, late), compress=compress) as tar:
        for name, path in _walk(root, skips, unread):
            if late():
                raise TooLateError
            added = _add(tar, name, path)
            files += added is _Added.FILE
            unread += [name] if added is _Added.UNREAD else []
    return Packed(files, tuple(unread))


def _opened(out: io.RawIOBase, *, compress: bool) -> tarfile.TarFile:
    if compress:
        return tarfile.open(fileobj=out, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT)
    return tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT)


def _walk(root: Path, skips: Callable[[str, bool], bool], unread: list[str]) -> Iterator[tuple[str, str]]:
    """Every entry below the root: its relative name, and its path. Folders come before what is in them.

    A folder that can't be read is added to `unread`; one that is not there any more is none.
    """
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError:
            unread.append(folder.rstrip("/") or ".")
            continue
        for entry in entries:
            name = f"{folder}{entry.name}"
            directory = entry.is_dir(follow_symlinks=False)
            if skips(name, directory):
                continue
            if directory:
                waiting.append(f"{name}/")
            yield name, str(root / name)


class _Added(Enum):
    FILE = auto()
    NO_FILE = auto()
    UNREAD = auto()


def _add(tar: tarfile.TarFile, name: str, path: str) -> _Added:
    """Add one entry. What is no file, folder or link is left out without a word, and what is gone since it was found.

    A file is opened first: one that can't be is not taken for the first of its names.
    """
    try:
        regular = stat.S_ISREG(os.lstat(path).st_mode)
        descriptor = os.open(path, _READ) if regular else None
        info = tar.gettarinfo(path, name) if descriptor is None else None
    except FileNotFoundError:
        return _Added.NO_FILE
    except OSError:
        return _Added.UNREAD
    if descriptor is not None:
        with os.fdopen(descriptor, "rb") as file:
            return _add_info(tar, tar.gettarinfo(path, name, file), file)
    return _add_info(tar, info, None)


def _add_info(tar: tarfile.TarFile, info: tarfile.TarInfo | None, file: IO[bytes] | None) -> _Added:
    if info is None or not (info.isdir() or info.issym() or (file and (info.isreg() or info.islnk()))):
        return _Added.NO_FILE
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if file and info.isreg():
        tar.addfile(info, _Exactly(file, info.size))  # type: ignore[arg-type]  # all that addfile does is read
    else:
        tar.addfile(info)
    return _Added.NO_FILE if info.isdir() else _Added.FILE


class _Exactly:
    """A file as large as it was: cut where it has grown, filled up where it has shrunk."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        """The next bytes; always as many as are asked for."""
        size = min(size, self._left)
        self._left -= size
        return self._file.read(size).ljust(size, b"\0")


def unpack(archive: IO[bytes], folder: Path, limit: int) -> int:
    """Unpack a tar archive, compressed or not, into an empty folder; returns how many files it held.

    Links become links wherever they lead, last of all: nothing is written through one. Raises `ContractError` for what
    is no archive, has entries that lie elsewhere, or is larger than `limit`; and `OSError`.
    """
    try:
        return unpacking.unpack(archive, folder, limit=limit, outward=True).files
    except unpacking.UnpackedTooLargeError:
        raise ContractError(Code.TOO_LARGE, f"unpacked it is larger than {limit} bytes") from None
    except LeadsOutError as error:
        raise ContractError(
            Code.REFUSED, f"an entry leads out of the folder: {error}", field="path", remedy="leave it out"
        ) from None
    except tarfile.TarError as error:
        raise ContractError(Code.INVALID_FIELD, f"this is no whole tar archive: {error}", field="data") from None
