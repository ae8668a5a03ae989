"""What the spool remembers when its records are gone: how far the broker is, and how far the sequence."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandherd_worker.spool_file import Mark

_NAME: Final = "cursor.json"


@dataclass(frozen=True)
class Cursor:
    """`acknowledged` is the number of the last record that the broker has, with all before it."""

    acknowledged: int = 0
    sequence: int = 0
    terminal: bool = False
    last_word: bool = False

    @property
    def mark(self) -> Mark:
        """The same as records have it."""
        ended = Mark.TERMINAL if self.terminal else Mark.NONE
        return ended | (Mark.LAST_WORD if self.last_word else Mark.NONE)


def load(directory: Path) -> Cursor:
    """The cursor as it was last saved; a fresh one if there is none or it can't be read.

    An older cursor than the truth costs a repetition that the broker drops, never a loss.
    """
    try:
        found = json.loads((directory / _NAME).read_text())
        return Cursor(**{name: type(default)(found[name]) for name, default in asdict(Cursor()).items()})
    except (OSError, ValueError, KeyError, TypeError):
        return Cursor()


def save(directory: Path, cursor: Cursor, *, durably: bool) -> None:
    """Replace the saved cursor. `durably` before anything is removed that it speaks for. Raises `OSError`."""
    fresh = directory / f"{_NAME}.new"
    with fresh.open("w") as file:
        file.write(json.dumps(asdict(cursor)))
        file.flush()
        if durably:
            os.fsync(file.fileno())
    fresh.replace(directory / _NAME)
    if durably:
        sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make what was created, renamed or removed in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
