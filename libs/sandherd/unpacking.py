"""Unpacking what nobody vouches for: first all that is no link, then the links, so that nothing is written through one.

Each entry goes through a rule of ours (`sandherd.inside`), and what is no link also through Python's own `data` filter
(PEP 706). A Python before 3.11.4 may have none, as that of Debian 12, which many images have: there it goes through one
of ours, which does the same. All of it blocks.
"""

import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from sandherd.inside import Inside, LeadsOutError, may_lead_out

_BROKEN: Final = (EOFError, ValueError, OverflowError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
"""What reading an archive raises besides `TarError` where it is damaged, or says what can't be."""


class UnpackedTooLargeError(Exception):
    """Unpacked, it would be larger than it may be."""


_WRITABLE, _READ, _RUN, _OWNER_RUNS = 0o600, 0o644, 0o755, 0o100


@dataclass(frozen=True)
class Unpacked:
    """How many files there are now, links among them; and the links that were left out, each with where it leads."""

    files: int
    left_out: tuple[tuple[str, str], ...] = ()


def unpack(archive: IO[bytes], folder: Path, *, limit: int | None = None, outward: bool) -> Unpacked:
    """Unpack a tar archive, compressed or not, into an empty folder. Without `outward`, leave out links that lead out.

    Raises `UnpackedTooLargeError` over `limit` bytes; `TarError` for what is no archive, `LeadsOutError` among it for
    entries that lie elsewhere; and `OSError`. What came before is there then.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r:*") as tar:
            files, links = _unpack_others(tar, folder, limit)
    except _BROKEN as error:
        raise tarfile.ReadError(str(error)) from None
    stay = [outward or _stays(link, folder) for link in links]
    _make([link for link, stays in zip(links, stay, strict=True) if stays], folder)
    left = [link for link, stays in zip(links, stay, strict=True) if not stays]
    return Unpacked(files + len(links) - len(left), tuple((link.name, link.linkname) for link in left))


def _unpack_others(tar: tarfile.TarFile, folder: Path, limit: int | None) -> tuple[int, list[tarfile.TarInfo]]:
    """How many files were unpacked, and the links, of which none was."""
    files, size, inside = 0, 0, Inside()
    links: list[tarfile.TarInfo] = []
    for entry in tar:
        size += entry.size
        if limit is not None and size > limit:
            raise UnpackedTooLargeError(f"unpacked it is larger than {limit} bytes")
        inside.check(entry)
        if entry.issym():
            links.append(entry)
        else:
            _extract(tar, entry, folder)
            files += not entry.isdir()
    return files, links


def _extract(tar: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Unpack what is no link. Raises `LeadsOutError`, and `OSError`."""
    if not _filters():
        _extract_data(tar, entry, folder / entry.name, folder)
        return
    try:
        tar.extract(entry, folder, filter="data")
    except tarfile.FilterError as error:
        raise LeadsOutError(str(error)) from None


def _filters() -> bool:
    return hasattr(tarfile, "data_filter")


def _extract_data(tar: tarfile.TarFile, entry: tarfile.TarInfo, place: Path, folder: Path) -> None:
    """What the `data` filter lets pass, as it lets it pass: nobody's files, that no other may write to."""
    if entry.islnk() and not entry.linkname.startswith("/"):
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / entry.linkname, place, follow_symlinks=False)
    elif entry.isdir():
        place.mkdir(parents=True, exist_ok=True)
        os.utime(place, (entry.mtime, entry.mtime))
    elif entry.isreg() and (content := tar.extractfile(entry)):
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            shutil.copyfileobj(content, file)
        place.chmod(_WRITABLE | (entry.mode & (_RUN if entry.mode & _OWNER_RUNS else _READ)))
        os.utime(place, (entry.mtime, entry.mtime))
    else:
        raise LeadsOutError(f"{entry.name[:200]!r} is no file, folder or link that may be here")


def _stays(link: tarfile.TarInfo, folder: Path) -> bool:
    if may_lead_out(link):
        return False
    if not _filters():
        return True
    try:
        tarfile.data_filter(link, str(folder))
    except tarfile.FilterError:
        return False
    return True


def _make(links: Iterable[tarfile.TarInfo], folder: Path) -> None:
    """Make the links. The file system is asked, too, whether another one is on the way: it may fold names."""
    root = folder.resolve()
    for link in links:
        place = folder / link.name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.parent.resolve() != (root / link.name).parent:
                raise LeadsOutError(f"{link.name[:200]!r} lies behind a link")
            place.symlink_to(link.linkname)
        except (FileExistsError, NotADirectoryError):
            raise tarfile.ReadError(f"{link.name[:200]!r} is a link, and something else") from None
        except ValueError as error:
            raise tarfile.ReadError(str(error)) from None
