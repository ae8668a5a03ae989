"""The files that an agent asks its client for: only what is in the work tree, whatever the path looks like.

A path is made plain first, links and all, and then walked folder by folder without following any link: what is moved
in between leads to an error, not elsewhere.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LARGEST: Final = 16 * 1024 * 1024


class RefusedPathError(ValueError):
    """A path that isn't for the agent, and why."""


class WorkTree:
    """The work tree, for reading and writing texts. Raises `RefusedPathError` or `OSError`."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """A file's text: `limit` lines from the `line`th on, which begin at 1; all of it if nothing is said."""
        with self._opened(path, os.O_RDONLY) as file:
            if os.fstat(file).st_size > _LARGEST:
                raise RefusedPathError(f"{path!r} is larger than {_LARGEST} bytes")
            with os.fdopen(os.dup(file), "rb") as reader:
                content = reader.read(_LARGEST + 1)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise RefusedPathError(f"{path!r} is no text in UTF-8") from None
        if line is None and limit is None:
            return text
        first = max(0, (line or 1) - 1)
        lines = StringIO(text, newline="\n")
        return "".join(islice(lines, first, None if limit is None else first + max(0, limit)))

    def write(self, path: str, content: str) -> None:
        """Make the file say this. It and the folders on the way are made if they are not there."""
        try:
            written = content.encode()
        except UnicodeEncodeError:
            raise RefusedPathError(f"what is to be written to {path!r} is no text") from None
        with self._opened(path, os.O_WRONLY | os.O_CREAT, make=True) as file:
            os.ftruncate(file, 0)
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(written)

    @contextmanager
    def _opened(self, path: str, flags: int, *, make: bool = False) -> Iterator[int]:
        *folders, name = self._parts(path)
        folder = os.open(self._root, _FOLDER)
        try:
            for part in folders:
                folder = _descend(folder, part, make=make)
            file = os.open(name, flags | _FILE, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise RefusedPathError(f"{path!r} is no regular file")
            yield file
        finally:
            os.close(file)

    def _parts(self, path: str) -> tuple[str, ...]:
        """The names on the way from the root. Without any link, for none is followed on the way."""
        if "\0" in path or not path.startswith("/"):
            raise RefusedPathError(f"{path[:200]!r} is no absolute path")
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self._root) or real == self._root:
            raise RefusedPathError(f"{path[:200]!r} is not in the work tree")
        return real.relative_to(self._root).parts


def _descend(folder: int, part: str, *, make: bool) -> int:
    """The folder within a folder, which is let go of."""
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=folder)
    below = os.open(part, _FOLDER, dir_fd=folder)
    os.close(folder)
    return below
