"""Copying files between here and a sandbox, with a bar that grows; and what is in a sandbox's folders."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Final, Self

from sandherd.client import archiving
from sandherd.client.cli import printing
from sandherd.client.cli.leaving import complain
from sandherd.client.cli.options import Format
from sandherd.client.cli.talking import Work
from sandherd.client.errors import HerdError, checked_name
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import put, put_progress, visible_line
from sandherd.contracts.errors import Code
from sandherd.contracts.names import SANDBOX_PREFIX
from sandherd.contracts.requests import FileEntry

HEADER = ("KIND", "MODE", "SIZE", "MODIFIED", "PATH")
_WIDTH: Final = 24
_MIB: Final = 1 << 20
_MOST_SHOWN: Final = 5


@dataclass(frozen=True)
class There:
    """A place in a sandbox."""

    sandbox: str
    path: str

    @property
    def is_folder(self) -> bool:
        """Whether it is meant as a folder by how it is written."""
        return self.path.endswith("/") or PurePosixPath(self.path).name in {"", ".", ".."}


def there(given: str) -> There | None:
    """The place in a sandbox that is meant, or None for one here. Raises `HerdError` for a name that is none."""
    name, colon, path = given.partition(":")
    if not colon or not name.startswith(SANDBOX_PREFIX):
        return None
    return There(checked_name(name, "sandbox"), path or ".")


def copy(source: str, target: str, output: Format, *, recursive: bool) -> Work:
    """What copies. Raises `HerdError` for what it can't mean, before anything is connected."""
    giver, taker = there(source), there(target)
    if (giver is None) == (taker is None):
        raise HerdError.of(
            Code.INVALID_FIELD,
            "one of the two has to be in a sandbox, and the other one here",
            field="path",
            remedy="write it as SANDBOX:PATH, as in `sandherd cp data.csv sbx-…:data.csv`",
        )
    if giver is not None:
        return lambda herd: _take(herd, giver, Path(target), output, recursive=recursive)
    assert taker is not None
    local = Path(source)
    _check_local(local, recursive=recursive)
    return lambda herd: _give(herd, local, taker, output)


def _check_local(local: Path, *, recursive: bool) -> None:
    if not local.exists():
        raise _wrong(f"{local}: there is no such file", "name a file or folder that there is")
    if local.is_dir() and not recursive:
        raise _wrong(f"{local} is a folder", "copy it with -r")


async def _give(herd: Herd, local: Path, taker: There, output: Format) -> int:
    path = await _place(herd, local, taker)
    with Bar(str(local)) as bar:
        written = await herd.upload(taker.sandbox, local, path, moved=bar.move)
    return _tell(output, f"{taker.sandbox}:{path}", written.size, written.sha256, files=written.files)


async def _place(herd: Herd, local: Path, taker: There) -> str:
    """The path it gets: in a folder that there is, or is written as one, under its own name."""
    name = local.resolve().name
    if not taker.is_folder:
        try:
            found = await herd.files(taker.sandbox, taker.path, limit=2)
        except HerdError as error:
            if error.problem.code is not Code.NOT_FOUND or error.problem.field == "sandbox":
                raise
            return taker.path
        itself = str(PurePosixPath(taker.path))
        if [entry for entry in found.entries if entry.path == itself]:
            return taker.path
    return str(PurePosixPath(taker.path) / name)


async def _take(herd: Herd, giver: There, target: Path, output: Format, *, recursive: bool) -> int:
    local = target / PurePosixPath(giver.path).name if target.is_dir() else target
    if not local.parent.is_dir():
        raise _wrong(f"{local.parent}: there is no such folder", "make it first")
    with tempfile.NamedTemporaryFile(dir=local.parent, prefix=".sandherd-") as out, Bar(giver.path) as bar:
        found = await herd.download(giver.sandbox, giver.path, out.file, moved=bar.move)
        if found.kind == "folder":
            if not recursive:
                raise _wrong(f"{giver.path} is a folder", "copy it with -r")
            _tell_left_out(archiving.unpack(out.file, local))
        else:
            _keep(out, local, found.mode)
    return _tell(output, str(local), found.size, found.sha256 or "")


def _tell_left_out(links: Sequence[tuple[str, str]]) -> None:
    """One line for links that were not made here, because they lead to what is not of the folder."""
    if not links:
        return
    shown = ", ".join(_in_one_line(f"{name[:200]} -> {target[:200]}") for name, target in links[:_MOST_SHOWN])
    more = f" and {len(links) - _MOST_SHOWN} more" if len(links) > _MOST_SHOWN else ""
    what = "a link that may lead" if len(links) == 1 else f"{len(links)} links that may lead"
    complain(f"left out {what} out of the folder: {shown}{more}")


def _in_one_line(text: str) -> str:
    return visible_line(text)


def _keep(out: Any, local: Path, mode: int) -> None:
    """Put the whole file in its place, at once."""
    out.file.flush()
    os.fchmod(out.file.fileno(), mode)
    if local.is_dir():
        raise _wrong(f"{local} is a folder", "name a file, or end it with /")
    # A second name for the same file, moved over what was there: closing removes the first.
    spare = f"{out.name}.whole"
    os.link(out.name, spare)
    Path(spare).replace(local)


def _tell(output: Format, place: str, size: int, sha256: str, **more: int) -> int:
    if output is Format.JSON:
        printing.document({"path": place, "size": size, "sha256": sha256, **more})
    else:
        put(f"{place}: {size} bytes, SHA-256 {sha256[:16]}…")
    return 0


def entries(place: str, output: Format, *, recursive: bool) -> Work:
    """What lists a folder. Raises `HerdError` for a name that is none."""
    asked = there(place) or There(checked_name(place, "sandbox"), ".")

    async def work(herd: Herd) -> int:
        found = await herd.files(asked.sandbox, asked.path, recursive=recursive)
        printing.answer(output, found, HEADER, [_row(entry) for entry in found.entries])
        if found.truncated and output is Format.TABLE:
            put(f"… and more than these {len(found.entries)}")
        return 0

    return work


def _row(entry: FileEntry) -> list[object]:
    return [entry.kind, f"{entry.mode:04o}", entry.size, entry.modified_at, entry.path]


class Bar:
    """How far a copy is, in one line on standard error; nothing where that is no terminal."""

    def __init__(self, name: str) -> None:
        self._name = visible_line(name)
        self._on = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._shown = False

    def move(self, moved: int, size: int) -> None:
        """So many bytes of so many have moved."""
        if self._on:
            put_progress(self.line(moved, size))
            self._shown = True

    def line(self, moved: int, size: int) -> str:
        """The line: what, how much of it, and how fast."""
        part = moved / size if size else 1.0
        full = round(_WIDTH * part)
        speed = moved / _MIB / max(time.monotonic() - self._begun, 0.001)
        return f"{self._name}  {'█' * full}{'░' * (_WIDTH - full)} {part:4.0%}  {speed:.1f} MiB/s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            put(error=True)


def _wrong(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="path", remedy=remedy)
