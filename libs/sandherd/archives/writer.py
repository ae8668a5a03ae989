"""Writes tar archives, of a folder or entry by entry. All functions block."""

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from sandherd.archives.no_follow import READ_FILE

Owner = tuple[int, int]
"""A user id and a group id."""
ROOT_OWNER: Final[Owner] = (0, 0)


class ArchiveTooLargeError(Exception):
    """The archive would exceed its limit."""


class DeadlinePassedError(Exception):
    """The deadline passed before the archive was complete."""


@dataclass(frozen=True)
class ArchiveSummary:
    """The number of files and links in an archive, and the paths that could not be read."""

    files: int
    unread: tuple[str, ...] = ()


class _LimitedWriter(io.RawIOBase):
    """Forwards written bytes to `out`, within the limit and until the deadline."""

    def __init__(self, out: IO[bytes], limit: int | None, late: Callable[[], bool]) -> None:
        self._out, self._bytes_left, self._late = out, limit, late

    def write(self, data: object) -> int:
        """Forward bytes. Raises `ArchiveTooLargeError` or `DeadlinePassedError`."""
        view = memoryview(data)  # type: ignore[arg-type]  # `write` gets a bytes-like object
        if self._bytes_left is not None:
            self._bytes_left -= view.nbytes
            if self._bytes_left < 0:
                raise ArchiveTooLargeError
        if self._late():
            raise DeadlinePassedError
        return self._out.write(view)

    def writable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """The position of the underlying file."""
        return self._out.tell()


def pack(
    root: Path,
    out: IO[bytes],
    *,
    limit: int | None,
    skips: Callable[[str, bool], bool] = lambda _path, _directory: False,
    late: Callable[[], bool] = lambda: False,
    compress: bool = False,
    strict: bool = False,
) -> ArchiveSummary:
    """Write a tar archive of a folder: relative names, each folder before its entries, without owners.

    Links are packed as links and never followed, even if one replaces a file meanwhile. Devices, pipes, sockets and
    entries that are removed meanwhile are left out, and so are entries for which `skips(path, is_directory)` is true.
    Entries that can't be read are listed in the result, and a file that shrinks meanwhile is padded; with `strict`,
    both raise `OSError`.
    Raises `ArchiveTooLargeError` beyond `limit` bytes, `DeadlinePassedError` once `late()` is true, and `OSError` if
    `out` can't be written.
    """
    files = 0
    unread: list[str] = []

    def record_failure(name: str, error: OSError) -> None:
        if strict:
            raise error
        unread.append(name)

    with _open(_LimitedWriter(out, limit, late), compress=compress) as tar:
        for name, path in _walk(root, skips, record_failure):
            if late():
                raise DeadlinePassedError
            try:
                descriptor = _open_regular(path)
                info = tar.gettarinfo(path, name) if descriptor is None else None
            except FileNotFoundError:
                continue
            except OSError as error:
                record_failure(name, error)
                continue
            if descriptor is None:
                files += _add(tar, info, None, strict=strict)
            else:
                with os.fdopen(descriptor, "rb") as file:
                    files += _add(tar, tar.gettarinfo(path, name, file), file, strict=strict)
    return ArchiveSummary(files, tuple(unread))


def add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int, owner: Owner = ROOT_OWNER) -> None:
    """Add a file with this content. Its time is 0, so that the same content gives the same archive."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    member.uid, member.gid = owner
    archive.addfile(member, io.BytesIO(content))


def add_directory(archive: tarfile.TarFile, name: str, mode: int, owner: Owner = ROOT_OWNER) -> None:
    """Add a directory. Its time is 0."""
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, mode
    member.uid, member.gid = owner
    archive.addfile(member)


def _open(out: io.RawIOBase, *, compress: bool) -> tarfile.TarFile:
    if compress:
        return tarfile.open(fileobj=out, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT)
    return tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT)


def _walk(
    root: Path, skips: Callable[[str, bool], bool], record_failure: Callable[[str, OSError], None]
) -> Iterator[tuple[str, str]]:
    """Every entry below the root: its relative name, and its path. A folder comes before its entries.

    `record_failure` is called for a folder that can't be read. A folder that no longer exists is skipped.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            record_failure(folder.rstrip("/") or ".", error)
            continue
        for entry in entries:
            name = f"{folder}{entry.name}"
            directory = entry.is_dir(follow_symlinks=False)
            if skips(name, directory):
                continue
            if directory:
                folders.append(f"{name}/")
            yield name, str(root / name)


def _open_regular(path: str) -> int | None:
    """The descriptor of a regular file, None for anything else. Raises `OSError`.

    A file is opened before it is added, so that an unreadable one is not recorded as the first of its hard links.
    """
    return os.open(path, READ_FILE) if stat.S_ISREG(os.lstat(path).st_mode) else None


def _add(tar: tarfile.TarFile, info: tarfile.TarInfo | None, file: IO[bytes] | None, *, strict: bool) -> bool:
    """Add an entry, unless it is not a file, folder or link. Returns whether a file or link was added."""
    if info is None or not (info.isdir() or info.issym() or (file and (info.isreg() or info.islnk()))):
        return False
    info.uid, info.gid = ROOT_OWNER
    info.uname = info.gname = ""
    if file and info.isreg():
        tar.addfile(info, file if strict else _PaddedFile(file, info.size))  # type: ignore[arg-type]  # addfile only reads
    else:
        tar.addfile(info)
    return not info.isdir()


class _PaddedFile:
    """A file with its recorded size: truncated if it has grown, padded with zeros if it has shrunk."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._bytes_left = file, size

    def read(self, size: int) -> bytes:
        """The next bytes; always as many as requested."""
        size = min(size, self._bytes_left)
        self._bytes_left -= size
        return self._file.read(size).ljust(size, b"\0")
