"""Extracts untrusted archives: first all other entries, then the links, so that nothing is written through a link.

Each entry is checked by `sandherd.archives.safe_paths`, and each one but links also by Python's `data` filter (PEP
706). A Python before 3.11.4 may not have this filter, such as that of Debian 12, which many images have: then
`_extract_data` does the same. All functions block.
"""

import gzip
import lzma
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from sandherd.archives.limited_reader import LimitedReader, UnpackedTooLargeError, entries, opened
from sandherd.archives.no_follow import is_directory, opened_directory
from sandherd.archives.safe_paths import SafePaths, UnsafePathError, may_point_outside

_ARCHIVE_ERRORS: Final = (EOFError, ValueError, OverflowError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
"""Exceptions, besides `TarError`, of reading an archive that is damaged or has impossible values."""


__all__ = ["ExtractionResult", "MergeConflictError", "UnpackedTooLargeError", "merge", "unpack"]
_OWNER_WRITABLE, _ALL_READABLE, _ALL_EXECUTABLE, _OWNER_EXECUTABLE = 0o600, 0o644, 0o755, 0o100
"""Permission bits of files, as the `data` filter sets them."""


@dataclass(frozen=True)
class ExtractionResult:
    """The number of unpacked files and links, and the links that were left out, each with its target."""

    files: int
    left_out: tuple[tuple[str, str], ...] = ()


def unpack(
    archive: IO[bytes],
    folder: Path,
    *,
    limit: int | None = None,
    outward: bool,
    skips: Callable[[str], bool] = lambda _path: False,
) -> ExtractionResult:
    """Unpack a tar archive, compressed or not, into an empty folder. Without `outward`, skip links that lead out of it.

    `skips(path)` excludes entries; it is also called for the entries of an excluded folder.
    Raises `UnpackedTooLargeError` over `limit` bytes; `TarError` for what is not an archive, and its subclass
    `UnsafePathError` for entries outside the folder; and `OSError`. Entries before the error remain unpacked.
    """
    try:
        max_bytes = sys.maxsize if limit is None else limit
        with opened(archive, max_bytes) as (tar, reader):
            files, links = _unpack_files(tar, reader, folder, max_bytes, skips)
    except _ARCHIVE_ERRORS as error:
        raise tarfile.ReadError(str(error)) from None
    inside = [outward or _stays_inside(link, folder) for link in links]
    _create_links([link for link, stays in zip(links, inside, strict=True) if stays], folder)
    left_out = [link for link, stays in zip(links, inside, strict=True) if not stays]
    return ExtractionResult(files + len(links) - len(left_out), tuple((link.name, link.linkname) for link in left_out))


def _unpack_files(
    tar: tarfile.TarFile, reader: LimitedReader, folder: Path, limit: int, skips: Callable[[str], bool]
) -> tuple[int, list[tarfile.TarInfo]]:
    """Unpack everything but links. Returns how many files were unpacked, and the links."""
    files, safe_paths = 0, SafePaths()
    links: list[tarfile.TarInfo] = []
    for entry in entries(tar, limit):
        safe_paths.check(entry)
        if skips(entry.name):
            continue
        if entry.issym():
            links.append(entry)
        else:
            with reader.content():
                _extract(tar, entry, folder)
            files += not entry.isdir()
    return files, links


def _extract(tar: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Unpack an entry that is not a link. Raises `UnsafePathError`, and `OSError`."""
    if not _has_data_filter():
        _extract_data(tar, entry, folder / entry.name, folder)
        return
    try:
        tar.extract(entry, folder, filter="data")
    except tarfile.FilterError as error:
        raise UnsafePathError(str(error)) from None


def _has_data_filter() -> bool:
    return hasattr(tarfile, "data_filter")


def _extract_data(tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path, folder: Path) -> None:
    """Unpack an entry that the `data` filter would accept, in the same way: without owner, not writable by others."""
    if entry.islnk() and not entry.linkname.startswith("/"):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / entry.linkname, target, follow_symlinks=False)
    elif entry.isdir():
        target.mkdir(parents=True, exist_ok=True)
        os.utime(target, (entry.mtime, entry.mtime))
    elif entry.isreg() and (content := tar.extractfile(entry)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)
        target.chmod(
            _OWNER_WRITABLE | (entry.mode & (_ALL_EXECUTABLE if entry.mode & _OWNER_EXECUTABLE else _ALL_READABLE))
        )
        os.utime(target, (entry.mtime, entry.mtime))
    else:
        raise UnsafePathError(f"{entry.name[:200]!r} is not an allowed file, folder or link")


def _stays_inside(link: tarfile.TarInfo, folder: Path) -> bool:
    if may_point_outside(link):
        return False
    if not _has_data_filter():
        return True
    try:
        tarfile.data_filter(link, str(folder))
    except tarfile.FilterError:
        return False
    return True


def _create_links(links: Iterable[tarfile.TarInfo], folder: Path) -> None:
    """Create the links.

    Also checks on disk that no other link is in the path, because a file system may treat different names as equal.
    """
    root = folder.resolve()
    for link in links:
        target = folder / link.name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.resolve() != (root / link.name).parent:
                raise UnsafePathError(f"{link.name[:200]!r} is behind a link")
            target.symlink_to(link.linkname)
        except (FileExistsError, NotADirectoryError):
            raise tarfile.ReadError(f"{link.name[:200]!r} is both a link and another entry") from None
        except ValueError as error:
            raise tarfile.ReadError(str(error)) from None


class MergeConflictError(Exception):
    """An entry is a folder on one side and not on the other. The message is its path."""


def merge(source: int, target: int) -> None:
    """Move all entries of a folder into another one of the same file system. Arguments are open descriptors.

    Folders are merged; files and links replace entries of the same name. Raises `MergeConflictError` before anything is
    moved, and `OSError`.
    """
    _check_conflicts(source, target, "")
    _move_entries(source, target)


def _check_conflicts(source: int, target: int, path: str) -> None:
    for name in os.listdir(source):
        in_source, in_target = is_directory(source, name), is_directory(target, name)
        if in_target is not None and in_source is not in_target:
            raise MergeConflictError(f"{path}{name}")
        if in_source and in_target:
            with opened_directory(source, name) as inner_source, opened_directory(target, name) as inner_target:
                _check_conflicts(inner_source, inner_target, f"{path}{name}/")


def _move_entries(source: int, target: int) -> None:
    for name in os.listdir(source):
        if is_directory(source, name) and is_directory(target, name):
            with opened_directory(source, name) as inner_source, opened_directory(target, name) as inner_target:
                _move_entries(inner_source, inner_target)
        else:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
