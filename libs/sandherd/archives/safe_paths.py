"""Decides what may be unpacked from an untrusted archive, only by the names in it.

Python's `data` filter (PEP 706) resolves links in the file system, and until 3.11.13, 3.12.11 and 3.13.4 it could be
deceived by paths longer than the system resolves (CVE-2025-4517 and others). This rule is applied before it, without
the file system: no entry is behind a link, and a hard link refers to an earlier file of the archive. So no file
is written through a link, whatever its target; and a link whose target goes up first and then only down leads to a path
inside, whatever the entries in that path are.
"""

import tarfile
from typing import Final

_UP: Final = ".."
DEEPEST: Final = 200
"""Maximum depth of folders in an archive: reading or removing a deeper tree exceeds Python's recursion limit."""


class UnsafePathError(tarfile.TarError):
    """An entry might be unpacked outside the folder. The message names it."""


class SafePaths:
    """Checks the entries of one archive, in their order."""

    def __init__(self) -> None:
        self._links: set[tuple[str, ...]] = set()
        self._files: set[tuple[str, ...]] = set()

    def check(self, entry: tarfile.TarInfo) -> None:
        """Raise `UnsafePathError` for an unsafe entry; note any other for the checks of later entries."""
        name = _path_parts(entry.name)
        if len(name) > DEEPEST:
            raise UnsafePathError(f"{_short(entry.name)} is more than {DEEPEST} folders deep")
        if entry.name.startswith("/") or _UP in name:
            raise UnsafePathError(f"{_short(entry.name)} is an absolute path, or contains '..'")
        if any(name[:length] in self._links for length in range(1, len(name) + 1)):
            raise UnsafePathError(f"{_short(entry.name)} is behind a link")
        if entry.issym():
            if not name:
                raise UnsafePathError("the folder itself is a link")
            self._files.discard(name)
            self._links.add(name)
        elif entry.islnk() and _path_parts(entry.linkname) not in self._files:
            raise UnsafePathError(f"{_short(entry.name)} is a hard link to something that is not an earlier file")
        elif not entry.isdir():
            self._files.add(name)


def may_point_outside(link: tarfile.TarInfo) -> bool:
    """Whether a link that `SafePaths` has accepted leads, or may lead, out of the folder."""
    parts = _path_parts(link.linkname)
    leading_ups = next((index for index, part in enumerate(parts) if part != _UP), len(parts))
    return link.linkname.startswith("/") or leading_ups >= len(_path_parts(link.name)) or _UP in parts[leading_ups:]


def _path_parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in {"", "."})


def _short(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:200]}…")
