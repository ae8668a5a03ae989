"""Checks whether a part of a local stack lacks space on its file system, or file descriptors."""

import os
import re
from pathlib import Path
from typing import Final

from sandherd.bus.storage_causes import Cause, Descriptors, describe, measure_space, shortage

_OPEN_FILES: Final = re.compile(r"^Max open files\s+(\d+)", re.MULTILINE)


def measure_descriptors(pid: int) -> Descriptors | None:
    """The open files of a process; None if it has ended or may not be inspected."""
    process = Path("/proc") / str(pid)
    try:
        limit = _OPEN_FILES.search((process / "limits").read_text())
        used = len(os.listdir(process / "fd"))  # noqa: PTH208  # only counted: thousands of paths are not needed
    except OSError:
        return None
    return Descriptors(used=used, limit=int(limit[1])) if limit else None


def measure_shortage(part: str, folder: Path, pid: int | None) -> tuple[Cause, str] | None:
    """The resource that a part of a stack lacks at present, and a line for users; None if it has enough."""
    try:
        space = measure_space(folder)
    except OSError:
        return None  # not created yet
    descriptors = measure_descriptors(pid) if pid else None
    cause = shortage(space, descriptors)
    return (cause, describe(cause, part, space, descriptors)) if cause else None
