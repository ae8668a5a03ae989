"""Folders as tar archives, on this side. All of it blocks; it runs in a thread.

Links are packed as links and never followed. What comes out of a sandbox is not trusted: what is unpacked goes through
a rule of ours and through Python's own `data` filter (PEP 706).
"""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.inside import Inside

_BLOCK: Final = 1 << 20


def pack(folder: Path, out: IO[bytes], most: int | None) -> None:
    """Write a folder as an archive. Raises `HerdError` (`too_large`) as soon as it is over `most` bytes."""
    with tarfile.open(fileobj=_Bounded(out, folder, most), mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or path.is_file() or path.is_dir():
                archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_of_nobody)


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


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack into a folder, which is made; into one that is there, file by file. Raises `HerdError`, `OSError`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".sandherd-", dir=folder.parent))
    try:
        with tarfile.open(fileobj=archive, mode="r:*") as found:
            found.extractall(staging, filter=Inside().filter)  # noqa: S202  # both rules judge each entry
        staging.chmod(0o755)
        if folder.exists():
            shutil.copytree(staging, folder, symlinks=True, dirs_exist_ok=True)
        else:
            staging.rename(folder)
    except tarfile.TarError as error:
        raise HerdError.of(Code.REFUSED, f"the sandbox's archive can't be unpacked: {error}", field="path") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


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
