"""Resolves paths that can't lead out of the work tree. Opens the folders of a path one after the other.

Relative links are followed, absolute ones are refused. For `..` the walk returns to the folder that it came from, so
that moving a folder meanwhile can't redirect it. All functions block.
"""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from sandherd.archives.no_follow import READ_DIRECTORY, opened_directory
from sandherd.contracts.errors import Code, ContractError

_MAX_LINKS: Final = 40
_NEW_DIRECTORY_MODE: Final = 0o755


def refused(path: str, why: str, *, field: str = "path", code: Code = Code.REFUSED) -> ContractError:
    """The error that refuses a path."""
    return ContractError(code, f"{path[:200]!r} {why}", field=field, remedy="give a path inside the work tree")


class WorkTreePaths:
    """Resolves paths in one work tree."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def open_parent(
        self, path: str, *, make: bool = False, follow: bool = True, field: str = "path"
    ) -> Iterator[tuple[int, str]]:
        """The folder that contains `path`, held open, and its name there; `.` if `path` is that folder itself.

        `make` creates missing folders on the way; `follow` also follows a link in the last component. Raises
        `ContractError`: `refused` for a path that leads out of the work tree, `not_found` for one that does not exist.
        """
        walk = _Walk(self._root, path, field, make=make, follow=follow)
        try:
            name = walk.resolve()
            yield walk.folder, name
        finally:
            walk.close()

    def folder(self, path: str, *, field: str = "path") -> Path:
        """The real path of a folder of the tree. Raises `ContractError`."""
        with self.open_parent(path, field=field) as (folder, name), opened(folder, name, path, field) as found:
            return Path(f"/proc/self/fd/{found}").readlink()


@contextmanager
def opened(folder: int, name: str, path: str, field: str = "path") -> Iterator[int]:
    """Open a folder within a folder. Raises `ContractError`."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(opened_directory(folder, name))
        except OSError as error:
            raise path_error(path, error, field) from None
        yield found


class _Walk:
    def __init__(self, root: Path, path: str, field: str, *, make: bool, follow: bool) -> None:
        if path.startswith("/"):
            raise refused(path, "is absolute, not relative to the work tree", field=field)
        self._path, self._field = path, field
        self._make, self._follow = make, follow
        self._left = deque(part for part in path.split("/") if part not in {"", "."})
        self._links = 0
        self._open = [os.open(root, READ_DIRECTORY & ~os.O_NOFOLLOW)]

    @property
    def folder(self) -> int:
        """The folder that the walk has reached."""
        return self._open[-1]

    def resolve(self) -> str:
        """Open all folders of the path; returns its last name. Raises `ContractError`."""
        while self._left:
            part = self._left.popleft()
            if part == "..":
                self._ascend()
            elif (link := self._link(part)) is not None:
                self._follow_link(link)
            elif self._left:
                self._descend(part)
            else:
                return part
        return "."

    def close(self) -> None:
        """Close all folders."""
        for folder in self._open:
            os.close(folder)

    def _ascend(self) -> None:
        if len(self._open) == 1:
            raise refused(self._path, "leads out of the work tree", field=self._field)
        os.close(self._open.pop())

    def _link(self, part: str) -> str | None:
        """The target of the entry `part`, if it is a link that must be followed; otherwise None."""
        if not self._left and not self._follow:
            return None
        try:
            return os.readlink(part, dir_fd=self.folder)
        except OSError:
            return None

    def _follow_link(self, link: str) -> None:
        self._links += 1
        if link.startswith("/"):
            raise refused(self._path, "contains a link that leads out of the work tree", field=self._field)
        if self._links > _MAX_LINKS:
            raise refused(self._path, "contains too many links", field=self._field)
        self._left.extendleft(part for part in reversed(link.split("/")) if part not in {"", "."})

    def _descend(self, part: str) -> None:
        try:
            if self._make:
                self._create(part)
            self._open.append(os.open(part, READ_DIRECTORY, dir_fd=self.folder))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and ".." in self._left:
                raise refused(self._path, "leads out of a folder that does not exist", field=self._field) from None
            raise path_error(self._path, error, self._field) from None

    def _create(self, part: str) -> None:
        """Create the folder if it is missing, unless `..` follows: as in the kernel, `..` of a missing folder fails."""
        try:
            os.stat(part, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            if ".." in self._left:
                raise
            with suppress(FileExistsError):
                os.mkdir(part, _NEW_DIRECTORY_MODE, dir_fd=self.folder)


def path_error(path: str, error: OSError, field: str = "path") -> ContractError:
    """The `ContractError` for an operating system error about a path."""
    if isinstance(error, FileNotFoundError):
        return refused(path, "does not exist", field=field, code=Code.NOT_FOUND)
    return refused(path, f"can't be used: {error.strerror or error}", field=field)
