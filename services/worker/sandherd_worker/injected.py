"""Which messages have reached the agent, remembered on the disk: a message handed over twice is injected once."""

import os
from pathlib import Path

from sandherd.contracts.delivery import Receipt


class Injected:
    """A file with the ids of the messages that were injected, one per line. A torn last line is no id of anything."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = set(path.read_text(errors="replace").split("\n")[:-1]) if path.exists() else set()

    def __len__(self) -> int:
        return len(self._known)

    def receipt(self, message: str) -> Receipt | None:
        """The receipt for a message that was injected before."""
        return Receipt(message=message, outcome="acknowledged") if message in self._known else None

    def add(self, message: str) -> None:
        """Remember a message, durably. Raises `OSError`."""
        with self._path.open("ab") as file:
            file.write(f"{message}\n".encode())
            file.flush()
            os.fdatasync(file.fileno())
        self._known.add(message)
