"""Where contents are: files of a directory or objects of a bucket, named by project and SHA-256, written once.

Without encryption a file has exactly the content, so that `sha256sum` verifies it. Methods block, and raise
`StorageError`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from event_ingest.artifacts.encryption import ProjectKey, herd_key
from event_ingest.storage.errors import StorageError, StorageFault, storage_errors
from event_ingest.storage.files import NewFile, check_directory, new_file
from event_ingest.storage.s3_place import S3Place, place_of
from sandherd.contracts.chunks import CHUNK_BYTES, chunk_count
from sandherd.settings import Settings

if TYPE_CHECKING:
    from event_ingest.storage.bucket import Bucket


class ContentStore(ABC):
    """Contents of artifacts by project and SHA-256, encrypted if there is a key."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    @property
    def encrypts(self) -> bool:
        """Whether new contents are encrypted."""
        return self._key is not None

    @property
    @abstractmethod
    def location(self) -> str:
        """Where it is, for users."""

    @abstractmethod
    def _created(self, name: str) -> AbstractContextManager[NewFile]:
        """A new file, which exists once the block has ended without an error."""

    @abstractmethod
    def _opened(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file to be read at any place."""

    @abstractmethod
    def _delete(self, name: str) -> None:
        """Delete a file, if it exists."""

    def write(self, project: str, sha256: str, pieces: Iterable[bytes], size: int) -> int:
        """Write a content; returns how many bytes are stored. The pieces are as those of a transfer."""
        key = self._project_key(project)
        stored = 0
        with self._created(_name(project, sha256, encrypted=self.encrypts)) as file:
            for block in pieces if key is None else key.encrypt(pieces, chunk_count(size)):
                file.write(block)
                stored += len(block)
        return stored

    def read_piece(self, project: str, sha256: str, index: int, size: int, *, encrypted: bool) -> bytes:
        """One piece of a content of this size."""
        with self._opened(_name(project, sha256, encrypted=encrypted)) as file:
            if encrypted:
                key = self._project_key(project)
                if key is None:
                    raise StorageError(StorageFault.OTHER_KEY, "an artifact is encrypted, and there is no key")
                return key.decrypt(file, index, size)
            file.seek(index * CHUNK_BYTES)
            return file.read(CHUNK_BYTES)

    def delete(self, project: str, sha256: str, *, encrypted: bool) -> None:
        """Delete a content, if it exists."""
        self._delete(_name(project, sha256, encrypted=encrypted))

    def _project_key(self, project: str) -> ProjectKey | None:
        return None if self._key is None else ProjectKey(self._key, project)


class DirectoryContents(ContentStore):
    """Contents in an existing directory."""

    def __init__(self, directory: Path, key: bytes | None = None) -> None:
        super().__init__(key)
        self._directory = directory

    @property
    def location(self) -> str:
        """Where it is, for users."""
        return str(self._directory)

    def _created(self, name: str) -> AbstractContextManager[NewFile]:
        return new_file(self._directory, name, private=True)

    def _opened(self, name: str) -> AbstractContextManager[BinaryIO]:
        check_directory(self._directory)
        with storage_errors(name):
            return (self._directory / name).open("rb")

    def _delete(self, name: str) -> None:
        check_directory(self._directory)
        path = self._directory / name
        with storage_errors(name):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # it has others, or one is being written
            path.parent.rmdir()


class BucketContents(ContentStore):
    """Contents in a bucket of S3, or of a store with its API. obstore is imported when it is first used: an extra."""

    def __init__(self, place: S3Place, key: bytes | None = None) -> None:
        super().__init__(key)
        self._place = place

    @property
    def location(self) -> str:
        """Where it is, for users."""
        return self._place.url

    def _created(self, name: str) -> AbstractContextManager[NewFile]:
        return self._bucket.created(name)

    def _opened(self, name: str) -> AbstractContextManager[BinaryIO]:
        return self._bucket.open(name)

    def _delete(self, name: str) -> None:
        self._bucket.delete(name)

    @cached_property
    def _bucket(self) -> "Bucket":
        try:
            from event_ingest.storage.bucket import Bucket
        except ModuleNotFoundError as error:
            raise StorageError(StorageFault.NOT_INSTALLED, f"artifacts in S3 need {error.name}") from error
        return Bucket(self._place)


def content_store(settings: Settings) -> ContentStore | None:
    """The artifact store that the settings describe; None: there is none."""
    if settings.artifact_store is None:
        return None
    key = None if settings.artifact_key is None else herd_key(settings.artifact_key)
    place = place_of(settings.artifact_store, settings)
    return DirectoryContents(Path(settings.artifact_store), key) if place is None else BucketContents(place, key)


def _name(project: str, sha256: str, *, encrypted: bool) -> str:
    return f"{project}/{sha256[:2]}/{sha256}{'.encrypted' if encrypted else ''}"
