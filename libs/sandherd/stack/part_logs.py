"""Reads the logs of a stack's parts: their last lines, and new lines while they are written."""

from collections import deque
from pathlib import Path
from typing import Final

from sandherd.stack.home import Home
from sandherd.stack.log_rotation import MAX_FILES

_SUFFIX: Final = ".log"


def log_names(home: Home) -> list[str]:
    """The names of all parts that have a log, sorted; empty if no stack was ever started."""
    return sorted(file.name.removesuffix(_SUFFIX) for file in home.logs.glob(f"*{_SUFFIX}"))


class PartLog:
    """The log of one part, with its rotated files."""

    def __init__(self, home: Home, name: str) -> None:
        self._file = home.logs / f"{name}{_SUFFIX}"
        self._position = 0
        self._rest = b""

    def last_lines(self, lines: int) -> list[str]:
        """The last `lines` lines. The next call of `new_lines` begins after them. Raises `OSError`."""
        content = self._file.read_bytes()
        self._position = len(content)
        last = deque(content.splitlines(), maxlen=lines)
        for number in range(1, MAX_FILES + 1):
            older = self._rotated(number)
            if len(last) == lines or not older.exists():
                break
            last = deque([*older.read_bytes().splitlines(), *last], maxlen=lines)
        return [line.decode(errors="replace") for line in last]

    def new_lines(self) -> list[str]:
        """Complete lines that were written since the last call. Raises `OSError`."""
        size, before_rotation = self._file.stat().st_size, b""
        if size < self._position:  # the log was rotated: its content was copied, then the file was truncated
            before_rotation, self._position = _read_from(self._rotated(1), self._position), 0
        appended = _read_from(self._file, self._position)
        self._position += len(appended)
        *complete, self._rest = (self._rest + before_rotation + appended).split(b"\n")
        return [line.decode(errors="replace") for line in complete]

    def _rotated(self, number: int) -> Path:
        return self._file.with_name(f"{self._file.name}.{number}")


def _read_from(file: Path, position: int) -> bytes:
    try:
        with file.open("rb") as log:
            log.seek(position)
            return log.read()
    except FileNotFoundError:
        return b""
