"""Rotates logs, so that they do not grow without limit."""

import os
import shutil
from pathlib import Path
from typing import Final

from sandherd.private_files import open_log

MAX_BYTES: Final = 16 * 1024 * 1024
"""A longer log is rotated."""
MAX_FILES: Final = 3
"""Maximum number of rotated files of a log."""


def rotate(directory: Path, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> list[Path]:
    """Copy each log that is longer than `max_bytes` to `<name>.1`, and truncate it. Returns the rotated logs.

    An older `<name>.1` becomes `<name>.2`, and so on. The process continues to append to the same file. Lines that it
    writes between the copy and the truncation are lost.
    """
    rotated = [log for log in sorted(directory.glob("*.log")) if log.stat().st_size > max_bytes]
    for log in rotated:
        _shift(log, max_files)
        with log.open("r+b") as file:
            with os.fdopen(open_log(log.with_name(f"{log.name}.1")), "ab") as older:
                shutil.copyfileobj(file, older)
            file.truncate(0)
    return rotated


def _shift(log: Path, max_files: int) -> None:
    for number in range(max_files - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
