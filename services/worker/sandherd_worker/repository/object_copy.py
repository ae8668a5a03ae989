"""Copies the objects of a mirror into a repository, as files: that is much faster than to fetch them.

The mirror may be written meanwhile: packs are replaced by new ones. No function runs a program. All of them block.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_PACKED: Final = re.compile(r"pack-[0-9a-f]+\.(idx|pack|rev|bitmap|mtimes|promisor)\Z")
_LOOSE_FOLDER: Final = re.compile(r"[0-9a-f]{2}\Z")
_LOOSE: Final = re.compile(r"[0-9a-f]{38}([0-9a-f]{24})?\Z")
_ATTEMPTS: Final = 5
_PIECE: Final = 16 * 1024 * 1024
_READ_ONLY: Final = 0o444


class StoppedError(Exception):
    """The copy was stopped."""


def copy_objects(mirror: Path, objects: Path, stopped: Callable[[], bool] = lambda: False) -> None:
    """Copy all objects of the bare repository `mirror` that are missing in the folder `objects`.

    Raises `OSError`, also if the mirror changes all the time, and `StoppedError`.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            for name in _names(mirror / "objects"):
                _copy(mirror / "objects" / name, objects / name, stopped)
        except FileNotFoundError:
            if not left or not (mirror / "objects").is_dir():
                raise
        else:
            return


def _names(objects: Path) -> Iterator[str]:
    """The files with objects. An index comes after its pack, because git only uses a pack that has an index."""
    packed = [path.name for path in (objects / "pack").iterdir() if _PACKED.match(path.name)]
    stems = {name.removesuffix(".idx") for name in packed if name.endswith(".idx")}
    for name in sorted(packed, key=lambda name: (name.endswith(".idx"), name)):
        if name.rpartition(".")[0] in stems:
            yield f"pack/{name}"
    for folder in sorted(path for path in objects.iterdir() if _LOOSE_FOLDER.match(path.name)):
        yield from (f"{folder.name}/{path.name}" for path in folder.iterdir() if _LOOSE.match(path.name))


def _copy(source: Path, target: Path, stopped: Callable[[], bool]) -> None:
    if target.exists():
        return
    target.parent.mkdir(exist_ok=True)
    part = target.with_name(f"tmp_{target.name}")
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _READ_ONLY)
        try:
            while _move(reading, writing):
                if stopped():
                    raise StoppedError("it was stopped")
            if os.fstat(writing).st_size != os.fstat(reading).st_size:
                raise OSError(errno.EIO, f"only a part of {source.name} could be copied")
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    part.rename(target)


def _move(reading: int, writing: int) -> int:
    """Copy the next piece in the kernel; returns its size."""
    try:
        return os.copy_file_range(reading, writing, _PIECE)
    except OSError:
        return os.sendfile(writing, reading, None, _PIECE)
