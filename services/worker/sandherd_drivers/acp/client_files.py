"""Reads and writes files on behalf of an agent, only in the work tree.

A path is first resolved, including its links. Then its folders are opened one after the other, without following
links: if a folder is replaced by a link meanwhile, the access fails, and reaches no file outside the work tree.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Final

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Includes `O_NONBLOCK`, because opening a named pipe would wait for another process."""
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024


class RefusedPathError(ValueError):
    """A path that the agent may not access, with the reason."""


class ClientFiles:
    """The work tree, for reading and writing text files. Raises `RefusedPathError` or `OSError`."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text of a file: `limit` lines from line `line` (from 1), or the whole file if both are None."""
        with self._open(path, os.O_RDONLY) as file:
            if os.fstat(file).st_size > _MAX_FILE_BYTES:
                raise RefusedPathError(f"{path!r} is larger than {_MAX_FILE_BYTES} bytes")
            with os.fdopen(os.dup(file), "rb") as reader:
                content = reader.read(_MAX_FILE_BYTES + 1)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise RefusedPathError(f"{path!r} is not UTF-8 text") from None
        if line is None and limit is None:
            return text
        first = max(0, (line or 1) - 1)
        lines = StringIO(text, newline="\n")
        return "".join(islice(lines, first, None if limit is None else first + max(0, limit)))

    def write(self, path: str, content: str) -> None:
        """Write the content to the file. The file and missing folders are created."""
        try:
            encoded = content.encode()
        except UnicodeEncodeError:
            raise RefusedPathError(f"the content for {path!r} is not valid text") from None
        with self._open(path, os.O_WRONLY | os.O_CREAT, create_folders=True) as file:
            os.ftruncate(file, 0)
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(encoded)

    @contextmanager
    def _open(self, path: str, flags: int, *, create_folders: bool = False) -> Iterator[int]:
        *folders, name = self._path_parts(path)
        folder = os.open(self._root, _FOLDER_FLAGS)
        try:
            for part in folders:
                folder = _descend(folder, part, create_folders=create_folders)
            file = os.open(name, flags | _FILE_FLAGS, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise RefusedPathError(f"{path!r} is not a regular file")
            yield file
        finally:
            os.close(file)

    def _path_parts(self, path: str) -> tuple[str, ...]:
        """The names on the path below the root. Links are resolved here, because `_open` follows none."""
        if "\0" in path or not path.startswith("/"):
            raise RefusedPathError(f"{path[:200]!r} is not an absolute path")
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self._root) or real == self._root:
            raise RefusedPathError(f"{path[:200]!r} is not in the work tree")
        return real.relative_to(self._root).parts


def _descend(folder: int, part: str, *, create_folders: bool) -> int:
    """Open a folder within a folder, and close the outer one."""
    if create_folders:
        with suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=folder)
    subfolder = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
    os.close(folder)
    return subfolder
