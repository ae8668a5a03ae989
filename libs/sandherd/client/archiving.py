"""Folders as tar archives, on this side. All of it blocks; it runs in a thread.

Links are packed as links and never followed. What comes out of a sandbox is not trusted: links that may lead out of the
folder are left out, and nothing is written through any other.
"""

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from sandherd import merging, unpacking
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.inside import DEEPEST

_BLOCK: Final = 1 << 20
_REMEDY: Final = "pack it there with `sandherd exec SANDBOX -- tar cf work.tar FOLDER`, and copy work.tar"


def pack(folder: Path, out: IO[bytes], most: int | None) -> None:
    """Write a folder as an archive. Raises `HerdError` (`too_large`) as soon as it is over `most` bytes."""
    with tarfile.open(fileobj=_Bounded(out, folder, most), mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(_below(folder)):
            if path.is_symlink() or path.is_file() or path.is_dir():
                archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_of_nobody)


def _below(folder: Path) -> Iterator[Path]:
    """All that is in a folder. Raises `HerdError` for what is too deep to be unpacked."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        if len(here.relative_to(folder).parts) >= DEEPEST and (folders or files):
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"{folder}: something in it lies more than {DEEPEST} folders deep",
                field="path",
                remedy="pack it with tar, and copy the archive",
            )
        yield from (here / name for name in (*folders, *files))


class _Bounded(io.RawIOBase):
    """Hands on what is written to it, up to a limit."""

    def __init__(self, out: IO[bytes], folder: Path, most: int | None) -> None:
        self._out, self._folder, self._most = out, folder, most
        self._written = 0

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # bytes of some kind, as `write` is given
        self._written += view.nbytes
        if self._most is not None and self._written > self._most:
            raise too_large(str(self._folder), None, self._most)
        return self._out.write(view)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written


def unpack(archive: IO[bytes], folder: Path) -> tuple[tuple[str, str], ...]:
    """Unpack into a folder, which is made; into one that is there, folder by folder. Whole, or nothing of it is seen.

    Returns the links that were left out because they may lead out, and where to. Raises `HerdError`.
    """
    within = folder if folder.is_dir() else folder.parent
    try:
        within.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".sandherd-", dir=within))
    except OSError as error:
        raise _unwritten(folder, error) from None
    try:
        # As a sandbox packs it, nothing is compressed: what is in it can't weigh more than it does.
        weight = archive.seek(0, os.SEEK_END)
        archive.seek(0)
        left_out = unpacking.unpack(archive, staging, limit=weight, outward=False).left_out
        staging.chmod(0o755)
        if folder.is_dir():
            _merge(staging, folder)
        else:
            staging.rename(folder)
    except (tarfile.TarError, unpacking.UnpackedTooLargeError) as error:
        message = f"the sandbox's archive can't be unpacked: {error}"
        raise HerdError.of(Code.REFUSED, message, field="path", remedy=_REMEDY) from None
    except OSError as error:
        raise _unwritten(folder, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return left_out


def _merge(staging: Path, folder: Path) -> None:
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in (staging, folder)]
    try:
        merging.merge(*descriptors)
    except merging.ClashError as clash:
        raise HerdError.of(
            Code.CONFLICT,
            f"{folder / str(clash)} is a folder, and in the sandbox it is none, or the other way round",
            field="path",
            remedy="copy to another folder",
        ) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _unwritten(folder: Path, error: OSError) -> HerdError:
    return HerdError.of(
        Code.INVALID_FIELD,
        f"{folder} can't be written: {error.strerror or error}",
        field="path",
        remedy="copy to where there is room, and where you may write",
    )


def too_large(name: str, size: int | None, most: int) -> HerdError:
    """The error for what is over the cap."""
    has = "has more" if size is None else f"has {size} bytes"
    return HerdError.of(
        Code.TOO_LARGE,
        f"{name} {has}; a file or an archive may have {most} bytes at the most",
        field="path",
        remedy="copy less at once, or have SANDHERD_MAX_FILE_MB raised",
    )


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def pieces(file: IO[bytes], tell: Callable[[bytes], object]) -> None:
    """Read a file to its end, block by block."""
    while block := file.read(_BLOCK):
        tell(block)
