"""What may be unpacked from an archive that nobody vouches for, told by the names in it alone.

Python's `data` filter (PEP 706) asks the file system where a link leads, and until 3.11.13, 3.12.11 and 3.13.4 it could
be deceived by paths longer than the system resolves (CVE-2025-4517 and others). This rule comes before it, and asks
nothing: no entry lies behind a link, and a second name is that of a file that came before. So nothing is written
through a link, wherever it leads; and one that goes up first and then only down leads to a place inside, whatever those
on its way are.
"""

import tarfile
from typing import Final

_UP: Final = ".."
DEEPEST: Final = 200
"""Levels of folders in an archive at the most: reading and removing a deeper tree recurses beyond what Python can."""


class LeadsOutError(tarfile.TarError):
    """An entry is not sure to stay inside. The text says which."""


class Inside:
    """Judges the entries of one archive, in their order."""

    def __init__(self) -> None:
        self._links: set[tuple[str, ...]] = set()
        self._files: set[tuple[str, ...]] = set()

    def check(self, entry: tarfile.TarInfo) -> None:
        """Raise `LeadsOutError`, or note what is unpacked."""
        name = _parts(entry.name)
        if len(name) > DEEPEST:
            raise LeadsOutError(f"{_short(entry.name)} lies more than {DEEPEST} folders deep")
        if entry.name.startswith("/") or _UP in name:
            raise LeadsOutError(f"{_short(entry.name)} begins at the root, or has '..' in it")
        if any(name[:length] in self._links for length in range(1, len(name) + 1)):
            raise LeadsOutError(f"{_short(entry.name)} lies behind a link")
        if entry.issym():
            if not name:
                raise LeadsOutError("the folder itself is a link")
            self._files.discard(name)
            self._links.add(name)
        elif entry.islnk() and _parts(entry.linkname) not in self._files:
            raise LeadsOutError(f"{_short(entry.name)} is a second name of what is no file before it")
        elif not entry.isdir():
            self._files.add(name)


def may_lead_out(link: tarfile.TarInfo) -> bool:
    """Whether a link that was checked leads to where the archive is not unpacked, or nobody can tell."""
    way = _parts(link.linkname)
    ups = next((index for index, part in enumerate(way) if part != _UP), len(way))
    return link.linkname.startswith("/") or ups >= len(_parts(link.name)) or _UP in way[ups:]


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in {"", "."})


def _short(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:200]}…")
