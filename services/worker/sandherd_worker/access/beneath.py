"""Paths of the work tree that can't lead out of it: walked one folder after the other, each held open.

Links are followed as far as they stay inside. `..` goes back to the folder that was come from, so that nothing that is
moved meanwhile leads elsewhere. All of it blocks.
"""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sandherd.contracts.errors import Code, ContractError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_CHAIN: Final = 40
_NEW_FOLDER: Final = 0o755


def refused(path: str, why: str, *, field: str = "path", code: Code = Code.REFUSED) -> ContractError:
    """The refusal of a path."""
    return ContractError(code, f"{path[:200]!r} {why}", field=field, remedy="give a path inside the work tree")


class Beneath:
    """The work tree."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def place(
        self, path: str, *, make: bool = False, follow: bool = True, field: str = "path"
    ) -> Iterator[tuple[int, str]]:
        """The folder, held open, in which `path` lies, and its name there; `.` if that is the folder itself.

        `make` makes the folders on the way; `follow` also follows a link in the last place. Raises `ContractError`:
        `refused` for what leads out, `not_found` for what is not there.
        """
        walk = _Walk(self._root, path, field, make=make, follow=follow)
        try:
            name = walk.go()
            yield walk.folder, name
        finally:
            walk.close()

    def folder(self, path: str, *, field: str = "path") -> Path:
        """Where a folder of the tree really is. Raises `ContractError`."""
        with self.place(path, field=field) as (folder, name), opened(folder, name, path, field) as found:
            return Path(f"/proc/self/fd/{found}").readlink()


@contextmanager
def opened(folder: int, name: str, path: str, field: str = "path") -> Iterator[int]:
    """A folder within a folder, held open. Raises `ContractError`."""
    try:
        found = os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        raise _trouble(path, error, field) from None
    try:
        yield found
    finally:
        os.close(found)


class _Walk:
    def __init__(self, root: Path, path: str, field: str, *, make: bool, follow: bool) -> None:
        if path.startswith("/"):
            raise refused(path, "begins at the root of the file system, not of the work tree", field=field)
        self._path, self._field = path, field
        self._make, self._follow = make, follow
        self._left = deque(part for part in path.split("/") if part not in {"", "."})
        self._links = 0
        self._open = [os.open(root, _FOLDER & ~os.O_NOFOLLOW)]

    @property
    def folder(self) -> int:
        """Where the walk has come to."""
        return self._open[-1]

    def go(self) -> str:
        """Walk to the end; returns the last name. Raises `ContractError`."""
        while self._left:
            part = self._left.popleft()
            if part == "..":
                self._back()
            elif (link := self._link(part)) is not None:
                self._splice(link)
            elif self._left:
                self._descend(part)
            else:
                return part
        return "."

    def close(self) -> None:
        """Let go of all folders."""
        for folder in self._open:
            os.close(folder)

    def _back(self) -> None:
        if len(self._open) == 1:
            raise refused(self._path, "leads out of the work tree", field=self._field)
        os.close(self._open.pop())

    def _link(self, part: str) -> str | None:
        """Where it points to, if it is a link that is to be followed."""
        if not self._left and not self._follow:
            return None
        try:
            return os.readlink(part, dir_fd=self.folder)
        except OSError:
            return None

    def _splice(self, link: str) -> None:
        self._links += 1
        if link.startswith("/"):
            raise refused(self._path, "goes through a link that leads out of the work tree", field=self._field)
        if self._links > _LONGEST_CHAIN:
            raise refused(self._path, "goes through too many links", field=self._field)
        self._left.extendleft(part for part in reversed(link.split("/")) if part not in {"", "."})

    def _descend(self, part: str) -> None:
        try:
            if self._make:
                self._made(part)
            self._open.append(os.open(part, _FOLDER, dir_fd=self.folder))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and ".." in self._left:
                raise refused(self._path, "goes back out of a folder that is not there", field=self._field) from None
            raise _trouble(self._path, error, self._field) from None

    def _made(self, part: str) -> None:
        """Make the folder if it is not there. Nobody can come back out of what was not there, as for the system."""
        try:
            os.stat(part, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            if ".." in self._left:
                raise
            with suppress(FileExistsError):
                os.mkdir(part, _NEW_FOLDER, dir_fd=self.folder)


def _trouble(path: str, error: OSError, field: str) -> ContractError:
    if isinstance(error, FileNotFoundError):
        return refused(path, "is not there", field=field, code=Code.NOT_FOUND)
    return refused(path, f"can't be used: {error.strerror or error}", field=field)


def trouble(path: str, error: OSError) -> ContractError:
    """What the system says of a path, as a refusal."""
    return _trouble(path, error, "path")
