"""The store of an archive: each day has a folder with a manifest and the files of projects.

`DirectoryStore` and `S3Store` implement it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import date
from typing import BinaryIO

from event_ingest.archive.manifest import MANIFEST, Manifest, read_manifest
from event_ingest.storage.new_files import PARTIAL, NewFile


class ArchiveStore(ABC):
    """The files of an archive. Its methods block, and raise `StorageError`."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The path or URL of the archive, for users."""

    @abstractmethod
    def create_file(self, day: date, name: str) -> AbstractContextManager[NewFile]:
        """A new file. It exists, complete and durable, when the block has ended without an error."""

    @abstractmethod
    def open_file(self, day: date, name: str) -> AbstractContextManager[BinaryIO]:
        """A file of the archive, opened for reading."""

    @abstractmethod
    def _folders(self) -> Iterable[str]:
        """The names of the folders of days."""

    @abstractmethod
    def _names(self, day: date) -> list[str]:
        """The names of the files in the folder of a day."""

    @abstractmethod
    def _read(self, day: date, name: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""

    @abstractmethod
    def _delete(self, day: date, name: str) -> None:
        """Delete a file."""

    def days(self) -> list[date]:
        """The days that have a folder, the newest first. In a bucket, a folder may have no manifest."""
        return sorted((day for name in self._folders() if (day := _day(name)) is not None), reverse=True)

    def manifest(self, day: date) -> Manifest:
        """The manifest of a day; an empty one if the archive has nothing of the day."""
        return read_manifest(day, self._read(day, MANIFEST))

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace a day's manifest, as one step."""
        with self.create_file(manifest.day, MANIFEST) as file:
            file.write(manifest.to_json())

    def delete_unlisted(self, manifest: Manifest) -> list[str]:
        """Delete the files of a day that interrupted runs have left. Returns their names."""
        listed = {MANIFEST, *(file.name for file in manifest.files)}
        unlisted = [name for name in self._names(manifest.day) if _is_unlisted(name, listed)]
        for name in unlisted:
            self._delete(manifest.day, name)
        return unlisted


def _is_unlisted(name: str, listed: set[str]) -> bool:
    return name not in listed and name.endswith((PARTIAL, ".parquet"))


def _day(name: str) -> date | None:
    try:
        day = date.fromisoformat(name)
    except ValueError:
        return None
    return day if day.isoformat() == name else None
