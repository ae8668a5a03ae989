"""An archive in a bucket of S3, or of a store with the API of S3.

An object exists as a whole or not at all, so objects need no temporary names. Objects that no manifest lists were left
by an interrupted run. obstore is an optional dependency, so it is imported when it is first used.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

from event_ingest.archive.store import ArchiveStore
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.new_files import NewFile
from event_ingest.storage.s3_place import S3Place

if TYPE_CHECKING:
    from event_ingest.storage.bucket import Bucket


class S3Store(ArchiveStore):
    """The files of an archive in a bucket."""

    def __init__(self, place: S3Place) -> None:
        self._place = place

    @property
    def location(self) -> str:
        """The URL of the archive in the bucket, for users."""
        return self._place.url

    def create_file(self, day: date, name: str) -> AbstractContextManager[NewFile]:
        """A new object. It exists when the block has ended without an error."""
        return self._bucket.create_file(f"{day}/{name}")

    @contextmanager
    def open_file(self, day: date, name: str) -> Iterator[BinaryIO]:
        """An object of the archive, opened for reading."""
        with self._bucket.open(f"{day}/{name}") as file:
            yield file

    def _folders(self) -> list[str]:
        return self._bucket.folders()

    def _names(self, day: date) -> list[str]:
        return self._bucket.names(day.isoformat())

    def _read(self, day: date, name: str) -> bytes | None:
        return self._bucket.read(f"{day}/{name}")

    def _delete(self, day: date, name: str) -> None:
        self._bucket.delete(f"{day}/{name}")

    @cached_property
    def _bucket(self) -> "Bucket":
        try:
            from event_ingest.storage.bucket import Bucket
        except ModuleNotFoundError as error:  # obstore is an extra
            raise StorageError(StorageFault.NOT_INSTALLED, f"archives in S3 need {error.name}") from error
        return Bucket(self._place)
