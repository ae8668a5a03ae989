"""A command's output: its bytes are in a file; which stream each part comes from is in memory."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

from sandherd.contracts.requests.access import INLINE_BYTES, ExecOutput

MAX_STORED_BYTES: Final = 64 * 1024 * 1024
"""Maximum stored output of one command, in bytes."""
_MAX_PIECES: Final = 512
"""Maximum number of pieces in one reply: each has overhead beside its bytes."""
_FOLDER: Final = "exec"
_OPEN_SUFFIX: Final = ".open"
"""The suffix of an empty file that exists until the command has ended."""

Stream = Literal["stdout", "stderr"]


def unfinished(state_dir: Path) -> list[str]:
    """The commands that had not ended when their worker was lost."""
    return sorted(path.name.removesuffix(_OPEN_SUFFIX) for path in (state_dir / _FOLDER).glob(f"*{_OPEN_SUFFIX}"))


class CommandLog:
    """The output of one command. An offset in it counts the bytes of both streams."""

    def __init__(self, state_dir: Path, name: str, has_space: Callable[[int], bool]) -> None:
        folder = state_dir / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path, self._open_marker = folder / f"{name}.out", folder / f"{name}{_OPEN_SUFFIX}"
        self._has_space = has_space
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file: int | None = os.open(self._path, flags, 0o600)
        self._open_marker.touch(mode=0o600)
        self._ends: list[int] = []
        self._streams: list[Stream] = []
        self.size = 0
        self.dropped = 0

    def add(self, stream: Stream, data: bytes) -> None:
        """Store the data as far as there is space; the rest is only counted."""
        stored = data[: max(0, MAX_STORED_BYTES - self.size)] if self._has_space(len(data)) else b""
        written = self._write(stored)
        self.dropped += len(data) - written
        if written == 0:
            return
        self.size += written
        if self._streams and self._streams[-1] == stream:
            self._ends[-1] = self.size
        else:
            self._streams.append(stream)
            self._ends.append(self.size)

    def read(self, offset: int) -> list[ExecOutput]:
        """The output after `offset`, at most as much as one reply carries. Raises `OSError`."""
        if offset >= self.size:
            return []
        with self._path.open("rb", buffering=0) as file:
            return list(self._parts(file.fileno(), offset))

    def end(self) -> None:
        """Close the log: the command has ended."""
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._open_marker.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the log."""
        self.end()
        self._path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> int:
        if self._file is None:
            return 0
        try:
            return os.pwrite(self._file, data, self.size)
        except OSError:
            return 0

    def _parts(self, file: int, offset: int) -> Iterator[ExecOutput]:
        stop = min(self.size, offset + INLINE_BYTES)
        first = bisect_right(self._ends, offset)
        for index in range(first, min(first + _MAX_PIECES, len(self._ends))):
            if offset >= stop:
                return
            end = min(self._ends[index], stop)
            yield ExecOutput(stream=self._streams[index], data=os.pread(file, end - offset, offset))
            offset = end
