"""An archive in a directory.

A file has a temporary name until it is complete and on disk: an interrupted run leaves no incomplete file under a final
name. The directory itself is never created: if its file system is not mounted, nothing must be written to the mount
point.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from pathlib import Path
from typing import BinaryIO

from event_ingest.archive.manifest import MANIFEST
from event_ingest.archive.store import ArchiveStore
from event_ingest.storage.errors import storage_errors
from event_ingest.storage.new_files import NewFile, check_directory, new_file


class DirectoryStore(ArchiveStore):
    """The files of an archive in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def location(self) -> str:
        """The path of the directory, for users."""
        return str(self.directory)

    def create_file(self, day: date, name: str) -> AbstractContextManager[NewFile]:
        """A new file. It gets its name when the block has ended without an error and the file is on disk."""
        return new_file(self.directory, f"{day}/{name}")

    @contextmanager
    def open_file(self, day: date, name: str) -> Iterator[BinaryIO]:
        """A file of the archive, opened for reading."""
        check_directory(self.directory)
        with storage_errors(f"{day}/{name}"):
            file = self.path(day, name).open("rb")
        with file:
            yield file

    def path(self, day: date, name: str) -> Path:
        """The path of a file of a day."""
        return self.directory / day.isoformat() / name

    def _folders(self) -> list[str]:
        check_directory(self.directory)
        with storage_errors("list of days"):
            return [folder.name for folder in self.directory.iterdir() if (folder / MANIFEST).is_file()]

    def _names(self, day: date) -> list[str]:
        folder = self.directory / day.isoformat()
        with storage_errors(f"{day}/"):
            return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def _read(self, day: date, name: str) -> bytes | None:
        check_directory(self.directory)
        path = self.path(day, name)
        with storage_errors(f"{day}/{name}"):
            return path.read_bytes() if path.exists() else None

    def _delete(self, day: date, name: str) -> None:
        with storage_errors(f"{day}/{name}"):
            self.path(day, name).unlink()
