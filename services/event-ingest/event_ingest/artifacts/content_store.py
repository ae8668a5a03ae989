"""Stores the contents of artifacts as files of a directory or objects of a bucket, named by project and SHA-256.

Without encryption a file has exactly the content, so that `sha256sum` verifies it. Methods block, and raise
`StorageError`.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from event_ingest.artifacts.encryption import ProjectKey, herd_key
from event_ingest.storage.errors import StorageError, StorageFault, storage_errors
from event_ingest.storage.new_files import PARTIAL, NewFile, check_directory, new_file
from event_ingest.storage.s3_place import S3Place, place_of
from sandherd.contracts.chunks import CHUNK_BYTES, chunk_count
from sandherd.settings import Settings

if TYPE_CHECKING:
    from event_ingest.storage.bucket import Bucket


_UNREADABLE_FAULTS: Final = frozenset(
    {StorageFault.MISSING, StorageFault.OTHER_KEY, StorageFault.INVALID, StorageFault.WRONG_DIGEST}
)
"""Faults of one content, which is readable again after it is written again."""
_FREE_DENOMINATOR: Final = 20
"""A twentieth of the file system stays free, because the database and the broker may use it, too."""


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
        """The path or URL of the store, for users."""

    @abstractmethod
    def _create(self, name: str) -> AbstractContextManager[NewFile]:
        """A new file. It exists when the block has ended without an error."""

    @abstractmethod
    def _open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file, opened for reading at any position."""

    @abstractmethod
    def _delete(self, name: str) -> None:
        """Delete a file, if it exists."""

    @abstractmethod
    def check_space(self, size: int) -> None:
        """Raise `StorageError` if it is known that there is no space for a content of this size."""

    def write(self, project: str, sha256: str, chunks: Iterable[bytes], size: int) -> int:
        """Write a content of `size` bytes, in chunks of `CHUNK_BYTES`. Returns how many bytes are stored."""
        self.check_space(size)
        key = self._project_key(project)
        stored = 0
        with self._create(_file_name(project, sha256, encrypted=self.encrypts)) as file:
            for block in chunks if key is None else key.encrypt(chunks, chunk_count(size)):
                file.write(block)
                stored += len(block)
        return stored

    def read_chunk(self, project: str, sha256: str, index: int, size: int, *, encrypted: bool) -> bytes:
        """The chunk at `index` of a content of `size` bytes."""
        name = _file_name(project, sha256, encrypted=encrypted)
        with self._open(name) as file, storage_errors(name):
            if encrypted:
                key = self._project_key(project)
                if key is None:
                    raise StorageError(StorageFault.OTHER_KEY, "an artifact is encrypted, and there is no key")
                return key.decrypt(file, index, size)
            file.seek(index * CHUNK_BYTES)
            data = file.read(CHUNK_BYTES)
        if len(data) != min(CHUNK_BYTES, size - index * CHUNK_BYTES):
            raise StorageError(StorageFault.WRONG_DIGEST, f"{name} has another size than was stored")
        return data

    def is_readable(self, project: str, sha256: str, size: int, *, encrypted: bool) -> bool:
        """Whether a content exists and its last chunk can be read with the present key.

        Raises `StorageError` if the store itself fails.
        """
        try:
            self.read_chunk(project, sha256, chunk_count(size) - 1, size, encrypted=encrypted)
        except StorageError as error:
            if error.fault in _UNREADABLE_FAULTS:
                return False
            raise
        return True

    def delete(self, project: str, sha256: str, *, encrypted: bool) -> None:
        """Delete a content, if it exists."""
        self._delete(_file_name(project, sha256, encrypted=encrypted))

    def _project_key(self, project: str) -> ProjectKey | None:
        return None if self._key is None else ProjectKey(self._key, project)


class DirectoryContents(ContentStore):
    """Contents in an existing directory."""

    def __init__(self, directory: Path, key: bytes | None = None) -> None:
        super().__init__(key)
        self._directory = directory

    @property
    def location(self) -> str:
        """The path of the directory, for users."""
        return str(self._directory)

    def check_space(self, size: int) -> None:
        """Raise `StorageError` if the directory does not exist, or less than a twentieth would be free."""
        check_directory(self._directory)
        with storage_errors(str(self._directory)):
            space = shutil.disk_usage(self._directory)
        if space.free - size < space.total // _FREE_DENOMINATOR:
            text = f"less than {100 // _FREE_DENOMINATOR} % of the file system of {self._directory} would be free"
            raise StorageError(StorageFault.FULL, text)

    def _create(self, name: str) -> AbstractContextManager[NewFile]:
        with storage_errors(name):
            for partial in (self._directory / name).parent.glob(f"{Path(name).name}*{PARTIAL}"):
                partial.unlink(missing_ok=True)  # left by a process that was killed
        return new_file(self._directory, name, private=True)

    def _open(self, name: str) -> AbstractContextManager[BinaryIO]:
        check_directory(self._directory)
        with storage_errors(name):
            return (self._directory / name).open("rb")

    def _delete(self, name: str) -> None:
        check_directory(self._directory)
        path = self._directory / name
        with storage_errors(name):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder has other files, or one is being written
            path.parent.rmdir()


class BucketContents(ContentStore):
    """Contents in a bucket of S3, or of a store with the API of S3.

    obstore is an optional dependency, so it is imported when it is first used.
    """

    def __init__(self, place: S3Place, key: bytes | None = None) -> None:
        super().__init__(key)
        self._place = place

    @property
    def location(self) -> str:
        """The URL of the store in the bucket, for users."""
        return self._place.url

    def check_space(self, size: int) -> None:
        """Does nothing: a bucket reports only in response to a write that it is full."""

    def _create(self, name: str) -> AbstractContextManager[NewFile]:
        return self._bucket.create_file(name)

    def _open(self, name: str) -> AbstractContextManager[BinaryIO]:
        return self._bucket.open(name, CHUNK_BYTES)

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
    """The artifact store of the setting `artifact_store`; None if it is not set."""
    if settings.artifact_store is None:
        return None
    key = None if settings.artifact_key is None else herd_key(settings.artifact_key)
    place = place_of(settings.artifact_store, settings)
    return DirectoryContents(Path(settings.artifact_store), key) if place is None else BucketContents(place, key)


def _file_name(project: str, sha256: str, *, encrypted: bool) -> str:
    return f"{project}/{sha256[:2]}/{sha256}{'.encrypted' if encrypted else ''}"
