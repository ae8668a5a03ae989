"""Where an archive is: folders of days with the files of projects and a manifest, in one of two kinds of store."""

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
        """Where it is, for users."""

    @abstractmethod
    def created(self, day: date, name: str) -> AbstractContextManager[NewFile]:
        """A new file, which exists once the block has ended without an error; then it is complete and durable."""

    @abstractmethod
    def opened(self, day: date, name: str) -> AbstractContextManager[BinaryIO]:
        """A file of the archive, to be read."""

    @abstractmethod
    def _folders(self) -> Iterable[str]:
        """The names of the days' folders."""

    @abstractmethod
    def _names(self, day: date) -> list[str]:
        """The files of a day's folder."""

    @abstractmethod
    def _read(self, day: date, name: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""

    @abstractmethod
    def _delete(self, day: date, name: str) -> None:
        """Delete a file."""

    def days(self) -> list[date]:
        """The days that have a folder, the newest first. One without a manifest is that of an interrupted run."""
        return sorted((day for name in self._folders() if (day := _day(name)) is not None), reverse=True)

    def manifest(self, day: date) -> Manifest:
        """What it has of a day; an empty manifest if nothing."""
        return read_manifest(day, self._read(day, MANIFEST))

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace a day's manifest, as one step."""
        with self.created(manifest.day, MANIFEST) as file:
            file.write(manifest.to_json())

    def delete_unlisted(self, manifest: Manifest) -> list[str]:
        """Delete what interrupted runs have left of a day; returns the names."""
        listed = {MANIFEST, *(file.name for file in manifest.files)}
        left = [name for name in self._names(manifest.day) if _is_left(name, listed)]
        for name in left:
            self._delete(manifest.day, name)
        return left


def _is_left(name: str, listed: set[str]) -> bool:
    return name not in listed and name.endswith((PARTIAL, ".parquet"))


def _day(name: str) -> date | None:
    try:
        day = date.fromisoformat(name)
    except ValueError:
        return None
    return day if day.isoformat() == name else None
