"""Reads and writes objects of a bucket with obstore. Its wheel has 6 MB, and no dependencies.

aiobotocore and boto3 need botocore, of 15 MB, and up to ten more packages; minio's client needs pycryptodome and argon2
and reads whole parts into memory. The S3 of pyarrow, which archives need anyway, has no typed errors, and completes
uploads that were abandoned.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.new_files import NewFile
from event_ingest.storage.s3_place import S3Place
from event_ingest.storage.upload import PART_BYTES, Content, Upload

_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Minimum bytes of an object that are read with one request."""
_PARALLEL_PARTS: Final = 2
_CONNECT_SECONDS: Final = 5
# Parts of the text of an error of obstore, which has no fields for them.
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_KIND: Final = re.compile(r"kind: (\w{1,30})")
_FULL_CODES: Final = frozenset({"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "507"})
_ACCESS_DENIED_STATUSES: Final = frozenset({"401", "403"})


class Bucket:
    """A part of a bucket; names of objects are relative to it. Its methods block, and raise `StorageError`."""

    def __init__(self, place: S3Place) -> None:
        self._place = place
        self._client = _connect(place)

    def folders(self) -> list[str]:
        """The names of the top-level folders. A folder is the part of an object's name before the first slash."""
        with self._errors("list"):
            return [name.strip("/") for name in obstore.list_with_delimiter(self._client)["common_prefixes"]]

    def names(self, folder: str) -> list[str]:
        """The names of all objects in a folder, relative to it."""
        with self._errors(f"{folder}/"):
            pages = obstore.list(self._client, prefix=folder)
            return [item["path"].removeprefix(f"{folder}/") for page in pages for item in page]

    def read(self, key: str) -> bytes | None:
        """The content of a small object; None if it does not exist."""
        try:
            with self._errors(key):
                return bytes(obstore.get(self._client, key).bytes())
        except StorageError as error:
            if error.fault is StorageFault.MISSING:
                return None
            raise

    def open(self, key: str, buffer_bytes: int = _BUFFER_BYTES) -> BinaryIO:
        """An object, opened for reading at any position. One request reads at least `buffer_bytes`."""
        with self._errors(key):
            size = obstore.head(self._client, key)["size"]
        return io.BufferedReader(_ObjectReader(self, key, size), buffer_bytes)

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """The bytes of an object from `start` up to but not including `end`."""
        with self._errors(key):
            return memoryview(obstore.get_range(self._client, key, start=start, end=end))

    @contextmanager
    def create_file(self, key: str) -> Iterator[NewFile]:
        """A new object as a `NewFile`. It exists when the block has ended without an error."""
        with self.upload_object(key) as upload:
            yield NewFile(upload, key)

    @contextmanager
    def upload_object(self, key: str) -> Iterator[Upload]:
        """A new object as an `Upload`. It exists when the block has ended without an error."""

        def send(content: Content) -> None:
            with self._errors(key):
                obstore.put(self._client, key, content, chunk_size=PART_BYTES, max_concurrency=_PARALLEL_PARTS)

        upload = Upload(send)
        try:
            yield upload
        except BaseException:
            upload.abandon()
            raise
        upload.finish()

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        try:
            with self._errors(key):
                obstore.delete(self._client, key)
        except StorageError as error:
            if error.fault is not StorageFault.MISSING:
                raise

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise _storage_error(
                error, what, self._place.url
            ) from None  # the text of `error` contains the whole request


class _ObjectReader(io.RawIOBase):
    """Reads an object by ranges."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._size)
        if self._position >= end:
            return 0
        data = self._bucket.read_range(self._key, self._position, end)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def _connect(place: S3Place) -> Client:
    optional: Any = {
        "prefix": place.prefix,
        "endpoint": place.endpoint,
        "access_key_id": place.access_key_id,
        "secret_access_key": place.secret_access_key,
    }
    return Client(
        place.bucket,
        region=place.region,
        **{name: value for name, value in optional.items() if value},
        client_options={
            "allow_http": place.endpoint is not None and place.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "timeout": timedelta(seconds=place.request_seconds),
        },
        retry_config={
            "max_retries": place.retries,
            "retry_timeout": timedelta(seconds=place.request_seconds * (1 + place.retries)),
        },
    )


def _storage_error(error: Exception, what: str, url: str) -> StorageError:
    """An error of obstore as `StorageError`, with the store's code or status.

    The text of obstore's error is not used: it contains requests and replies, which must not be logged.
    """
    text = str(error)
    code, status = _first_group(_CODE, text), _first_group(_STATUS, text)
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return StorageError(StorageFault.MISSING, f"there is no {what}")
    reason = code or status or _first_group(_KIND, text) or type(error).__name__
    if _FULL_CODES & {code, status}:
        return StorageError(StorageFault.FULL, f"there is no space for {what} ({reason})")
    fault = StorageFault.DENIED if status in _ACCESS_DENIED_STATUSES else StorageFault.UNREACHABLE
    return StorageError(fault, f"{what} can't be written or read in {url}: {reason}")


def _first_group(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match[1]
