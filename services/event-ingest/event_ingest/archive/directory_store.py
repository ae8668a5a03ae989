"""An archive in a directory.

A file has a temporary name until it is complete and on disk, and its own one afterwards, so that an interruption leaves
nothing that could be taken for it. The directory itself is never created: if its file system is not mounted, events
must not be archived in its place.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import BinaryIO

from event_ingest.archive.errors import ArchiveError, ArchiveFault, storage_errors
from event_ingest.archive.manifest import MANIFEST
from event_ingest.archive.store import PARTIAL, ArchiveStore, NewFile


class DirectoryStore(ArchiveStore):
    """The files of an archive in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def location(self) -> str:
        """Where it is, for users."""
        return str(self.directory)

    @contextmanager
    def created(self, day: date, name: str) -> Iterator[NewFile]:
        """A new file, which has its name once the block has ended without an error and it is on disk."""
        self._check()
        path = self.path(day, name)
        partial = path.with_name(name + PARTIAL)
        with storage_errors(f"{day}/{name}"):
            path.parent.mkdir(exist_ok=True)
            opened = partial.open("wb", buffering=0)
        try:
            with opened:
                yield NewFile(opened, f"{day}/{name}")
                with storage_errors(f"{day}/{name}"):
                    os.fsync(opened.fileno())
            with storage_errors(f"{day}/{name}"):
                partial.rename(path)
                _sync(path.parent)
                _sync(self.directory)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    @contextmanager
    def opened(self, day: date, name: str) -> Iterator[BinaryIO]:
        """A file of the archive, to be read."""
        self._check()
        with storage_errors(f"{day}/{name}"):
            file = self.path(day, name).open("rb")
        with file:
            yield file

    def path(self, day: date, name: str) -> Path:
        """The place of a file."""
        return self.directory / day.isoformat() / name

    def _folders(self) -> list[str]:
        self._check()
        with storage_errors("list of days"):
            return [folder.name for folder in self.directory.iterdir() if (folder / MANIFEST).is_file()]

    def _names(self, day: date) -> list[str]:
        folder = self.directory / day.isoformat()
        with storage_errors(f"{day}/"):
            return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def _read(self, day: date, name: str) -> bytes | None:
        self._check()
        path = self.path(day, name)
        with storage_errors(f"{day}/{name}"):
            return path.read_bytes() if path.exists() else None

    def _delete(self, day: date, name: str) -> None:
        with storage_errors(f"{day}/{name}"):
            self.path(day, name).unlink()

    def _check(self) -> None:
        if not self.directory.is_dir():
            raise ArchiveError(ArchiveFault.UNREACHABLE, f"{self.directory} is not an existing directory")


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
