"""What may be unpacked from an archive that nobody vouches for, told by the names in it alone.

Python's `data` filter (PEP 706) asks the file system where a link leads, and until 3.11.13, 3.12.11 and 3.13.4 it could
be deceived by paths longer than the system resolves (CVE-2025-4517 and others). This rule comes before it, and asks
nothing: no entry lies behind a link, a link goes up first and then only down, and a second name is that of a file
that came before. So each link leads to a place inside, whatever those on its way are.
"""

import tarfile
from typing import Final

_UP: Final = ".."


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
        if _UP in name or any(name[:length] in self._links for length in range(1, len(name) + 1)):
            raise LeadsOutError(f"{_short(entry.name)} has '..' in it, or lies behind a link")
        if entry.issym():
            self._check_link(name, entry.linkname)
            self._files.discard(name)
            self._links.add(name)
        elif entry.islnk() and _parts(entry.linkname) not in self._files:
            raise LeadsOutError(f"{_short(entry.name)} is a second name of what is no file before it")
        elif not entry.isdir():
            self._files.add(name)

    def filter(self, entry: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        """This rule and then Python's, for `extractall`."""
        self.check(entry)
        return tarfile.data_filter(entry, folder)

    def _check_link(self, name: tuple[str, ...], target: str) -> None:
        way = _parts(target)
        ups = next((index for index, part in enumerate(way) if part != _UP), len(way))
        if target.startswith("/") or ups >= len(name) or _UP in way[ups:]:
            raise LeadsOutError(f"{_short(name[-1] if name else '.')} is a link that may lead out: {_short(target)}")


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in {"", "."})


def _short(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:200]}…")
