"""Copies the objects of a mirror into a repository, as files, which is much faster than fetching them.

The mirror may change meanwhile: packs are replaced by new ones. No function runs a program. All of them block.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_PACK_FILE: Final = re.compile(r"pack-[0-9a-f]+\.(idx|pack|rev|bitmap|mtimes|promisor)\Z")
_LOOSE_FOLDER: Final = re.compile(r"[0-9a-f]{2}\Z")
_LOOSE_OBJECT: Final = re.compile(r"[0-9a-f]{38}([0-9a-f]{24})?\Z")
_ATTEMPTS: Final = 5
_PIECE_BYTES: Final = 16 * 1024 * 1024
_READ_ONLY: Final = 0o444


class StoppedError(Exception):
    """The copy was stopped."""


def copy_objects(mirror: Path, objects: Path, stopped: Callable[[], bool] = lambda: False) -> None:
    """Copy all objects of the bare repository `mirror` that are missing in the folder `objects`.

    Raises `OSError`, also if the mirror changes during each attempt, and `StoppedError`.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            for name in _names(mirror / "objects"):
                _copy(mirror / "objects" / name, objects / name, stopped)
        except FileNotFoundError:
            if not attempts_left or not (mirror / "objects").is_dir():
                raise
        else:
            return


def _names(objects: Path) -> Iterator[str]:
    """The files with objects. An index comes after its pack, because git only uses a pack that has an index."""
    packed = [path.name for path in (objects / "pack").iterdir() if _PACK_FILE.match(path.name)]
    stems = {name.removesuffix(".idx") for name in packed if name.endswith(".idx")}
    for name in sorted(packed, key=lambda name: (name.endswith(".idx"), name)):
        if name.rpartition(".")[0] in stems:
            yield f"pack/{name}"
    for folder in sorted(path for path in objects.iterdir() if _LOOSE_FOLDER.match(path.name)):
        yield from (f"{folder.name}/{path.name}" for path in folder.iterdir() if _LOOSE_OBJECT.match(path.name))


def _copy(source: Path, target: Path, stopped: Callable[[], bool]) -> None:
    if target.exists():
        return
    target.parent.mkdir(exist_ok=True)
    part = target.with_name(f"tmp_{target.name}")
    source_descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target_descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _READ_ONLY)
        try:
            while _copy_piece(source_descriptor, target_descriptor):
                if stopped():
                    raise StoppedError("it was stopped")
            if os.fstat(target_descriptor).st_size != os.fstat(source_descriptor).st_size:
                raise OSError(errno.EIO, f"only a part of {source.name} could be copied")
        finally:
            os.close(target_descriptor)
    finally:
        os.close(source_descriptor)
    part.rename(target)


def _copy_piece(source_descriptor: int, target_descriptor: int) -> int:
    """Copy the next piece in the kernel; returns its size."""
    try:
        return os.copy_file_range(source_descriptor, target_descriptor, _PIECE_BYTES)
    except OSError:
        return os.sendfile(target_descriptor, source_descriptor, None, _PIECE_BYTES)
