"""The state of the spool that remains when its records are deleted, such as the last acknowledged record."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandherd.private_files import sync_directory
from sandherd_worker.spool_file import RecordMark

_NAME: Final = "cursor.json"


@dataclass(frozen=True)
class SpoolCursor:
    """The saved state. The broker has stored all records up to the number `acknowledged`.

    `terminal` is whether the event that ends the attempt is stored, `last_word` whether the source's last event is.
    """

    acknowledged: int = 0
    sequence: int = 0
    terminal: bool = False
    last_word: bool = False

    @property
    def mark(self) -> RecordMark:
        """`terminal` and `last_word` as a `RecordMark`."""
        ended = RecordMark.TERMINAL if self.terminal else RecordMark.NONE
        return ended | (RecordMark.LAST_EVENT if self.last_word else RecordMark.NONE)


def load(directory: Path) -> SpoolCursor:
    """The last saved cursor; a new one if it is missing or can't be read.

    A cursor that is too old causes duplicates, which the broker drops, but never a loss.
    """
    try:
        found = json.loads((directory / _NAME).read_text())
        return SpoolCursor(**{name: type(default)(found[name]) for name, default in asdict(SpoolCursor()).items()})
    except (OSError, ValueError, KeyError, TypeError):
        return SpoolCursor()


def save(directory: Path, cursor: SpoolCursor, *, durably: bool) -> None:
    """Replace the saved cursor. It must be durable before the records that it covers are deleted. Raises `OSError`."""
    new_path = directory / f"{_NAME}.new"
    with new_path.open("w") as file:
        file.write(json.dumps(asdict(cursor)))
        file.flush()
        if durably:
            os.fsync(file.fileno())
    new_path.replace(directory / _NAME)
    if durably:
        sync_directory(directory)
