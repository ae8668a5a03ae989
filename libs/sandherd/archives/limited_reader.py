"""Reads untrusted tar archives within limits: a small one may unpack to any number of bytes, files and names."""

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final, cast

ENTRY: Final = 512
"""Bytes that each entry counts in addition to its size: those of its header."""
LARGEST_HEADERS: Final = 512 * 1024 * 1024
"""Maximum bytes of all headers, which become names and entries in memory: enough for 350,000 packed files."""
_MAX_READ_BYTES: Final = 1024 * 1024
"""Content is read in smaller pieces; a header, such as a long name, is read whole."""
_DECOMPRESSION_ERRORS: Final = (EOFError, OSError, zlib.error, lzma.LZMAError)


class UnpackedTooLargeError(Exception):
    """The unpacked archive would exceed a limit."""


class LimitedReader:
    """The bytes of an archive, decompressed. Every method raises `UnpackedTooLargeError` beyond `limit`."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit
        self._header_bytes_left = LARGEST_HEADERS
        self._in_content = False

    @contextmanager
    def content(self) -> Iterator[None]:
        """A context in which reads are of the content of an entry, not of a header."""
        self._in_content = True
        try:
            yield
        finally:
            self._in_content = False

    def read(self, size: int) -> bytes:
        """The next bytes, as `tarfile` needs them. Raises `ReadError` if they can't be decompressed."""
        if not 0 <= size <= _MAX_READ_BYTES:
            raise UnpackedTooLargeError(f"the header of an entry is larger than {_MAX_READ_BYTES} bytes")
        try:
            data = self._file.read(size)
        except _DECOMPRESSION_ERRORS as error:
            raise tarfile.ReadError(str(error)) from None
        if not self._in_content:
            self._header_bytes_left -= len(data)
        if self._header_bytes_left < 0:
            raise UnpackedTooLargeError("it has too many entries, or too long names")
        self._check(self._file.tell())
        return data

    def seek(self, offset: int) -> int:
        """Go to a position from the beginning. Raises `ReadError` as `read` does."""
        self._check(offset)
        try:
            return self._file.seek(offset)
        except _DECOMPRESSION_ERRORS as error:
            raise tarfile.ReadError(str(error)) from None

    def tell(self) -> int:
        """The position in the decompressed bytes."""
        return self._file.tell()

    def _check(self, position: int) -> None:
        if position > self._limit:
            raise too_large(self._limit)


def too_large(limit: int) -> UnpackedTooLargeError:
    """The error for an archive over the limit."""
    return UnpackedTooLargeError(f"unpacked it is larger than {limit} bytes")


@contextmanager
def opened(archive: IO[bytes], limit: int) -> Iterator[tuple[tarfile.TarFile, LimitedReader]]:
    """An archive, compressed or not, and its reader. Raises `TarError`, and `UnpackedTooLargeError`."""
    reader = LimitedReader(_decompress(archive), limit)
    # A `TarFile` that reads needs no other methods.
    with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r:") as tar:
        yield tar, reader


def entries(tar: tarfile.TarFile, limit: int) -> Iterator[tarfile.TarInfo]:
    """The entries. Raises `UnpackedTooLargeError` if their total size exceeds the limit, as with sparse files."""
    size = 0
    for entry in tar:
        size += entry.size + ENTRY
        if size > limit:
            raise too_large(limit)
        entry.pax_headers = {}  # not needed from here on
        yield entry


def _decompress(archive: IO[bytes]) -> IO[bytes]:
    archive.seek(0)
    magic = archive.read(6)
    archive.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=archive, mode="rb"))
    if magic.startswith(b"BZh"):
        import bz2  # not every Python in an image has it

        return cast("IO[bytes]", bz2.BZ2File(archive))
    if magic.startswith(b"\xfd7zXZ"):
        return cast("IO[bytes]", lzma.LZMAFile(archive))
    return archive
