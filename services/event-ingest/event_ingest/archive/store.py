"""Where an archive is: a directory, with a folder for each day.

A file has a temporary name until it is complete and on disk, and its own one afterwards, so that an interruption leaves
nothing that could be taken for it. The directory itself is never created: if its file system is not mounted, events
must not be archived in its place.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

from event_ingest.archive.errors import ArchiveError, ArchiveFault, storage_errors
from event_ingest.archive.manifest import MANIFEST, Manifest, read_manifest

PARTIAL: Final = ".partial"
"""The end of a file's name while it is being written."""


class ArchiveStore:
    """The files of an archive. Its methods block, and raise `ArchiveError`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def location(self) -> str:
        """Where it is, for users."""
        return str(self.directory)

    def days(self) -> list[date]:
        """The days that have a manifest, the newest first."""
        self._check()
        with storage_errors("list of days"):
            found = [_day(folder.name) for folder in self.directory.iterdir() if (folder / MANIFEST).is_file()]
        return sorted((day for day in found if day is not None), reverse=True)

    def manifest(self, day: date) -> Manifest:
        """What it has of a day; an empty manifest if nothing."""
        self._check()
        path = self.path(day, MANIFEST)
        with storage_errors(f"{day}/{MANIFEST}"):
            document = path.read_bytes() if path.exists() else None
        return read_manifest(day, document)

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace a day's manifest, as one step."""
        with self.created(manifest.day, MANIFEST) as file:
            file.write(manifest.to_json())

    @contextmanager
    def created(self, day: date, name: str) -> Iterator["NewFile"]:
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

    def delete_unlisted(self, manifest: Manifest) -> list[str]:
        """Delete what interrupted runs have left of a day; returns the names."""
        folder = self.directory / manifest.day.isoformat()
        listed = {MANIFEST, *(file.name for file in manifest.files)}
        left = []
        with storage_errors(f"{manifest.day}/"):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name not in listed and path.name.endswith((PARTIAL, ".parquet")):
                    path.unlink()
                    left.append(path.name)
        return left

    def path(self, day: date, name: str) -> Path:
        """The place of a file."""
        return self.directory / day.isoformat() / name

    def _check(self) -> None:
        if not self.directory.is_dir():
            raise ArchiveError(ArchiveFault.UNREACHABLE, f"{self.directory} is not an existing directory")


class NewFile:
    """A file that is being written. Only its own errors are those of the archive, not those of what is read for it."""

    def __init__(self, file: FileIO, name: str) -> None:
        self._file = file
        self._name = name

    def write(self, data: bytes) -> None:
        """Write all of it."""
        left = memoryview(data)
        with storage_errors(self._name):
            while left:
                left = left[self._file.write(left) :]


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _day(name: str) -> date | None:
    try:
        day = date.fromisoformat(name)
    except ValueError:
        return None
    return day if day.isoformat() == name else None
