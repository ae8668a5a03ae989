"""Logs that do not grow for ever."""

import os
import shutil
from pathlib import Path
from typing import Final

from sandherd.private_files import open_log

MOST_BYTES: Final = 16 * 1024 * 1024
KEPT: Final = 3


def rotate(directory: Path, most: int = MOST_BYTES, kept: int = KEPT) -> list[Path]:
    """Move the content of each log that is too long to `<name>.1`, and so on. Returns the logs that were.

    Its process goes on writing to the same file, which is open for appending and only becomes empty; what it writes
    in the instant between the copy and that is lost.
    """
    rotated = [log for log in sorted(directory.glob("*.log")) if log.stat().st_size > most]
    for log in rotated:
        _shift(log, kept)
        with log.open("r+b") as file:
            with os.fdopen(open_log(log.with_name(f"{log.name}.1")), "ab") as older:
                shutil.copyfileobj(file, older)
            file.truncate(0)
    return rotated


def _shift(log: Path, kept: int) -> None:
    for number in range(kept - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
