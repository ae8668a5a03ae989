"""Large content as an artifact: it is split into chunks, each a message in the stream ARTIFACTS, and reassembled.

Every chunk but the last has `CHUNK_BYTES` bytes, so a chunk's index gives its position. The message id of a chunk ends
with its index: the broker drops a chunk that is sent twice, and a reader knows its position. Chunks may be received in
any order, and more than once. The reference has the size and the SHA-256 of the whole, which the receiver verifies.
"""

import hashlib
import os
from typing import IO, Final

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.requests.access import INLINE_BYTES, ArtifactPiece
from sandherd.contracts.subjects import ARTIFACT

CHUNK_BYTES: Final = INLINE_BYTES
_MAX_INDEX_DIGITS: Final = 9
"""Maximum digits of an index. No valid index has more, and Python refuses to parse thousands of digits."""
_BLOCK_BYTES: Final = 1 << 20


class InvalidChunkError(Exception):
    """A chunk, or the number of chunks, does not fit the reference."""


def chunk_count(size: int) -> int:
    """The number of chunks of `size` bytes; at least one, which may be empty."""
    return max(1, -(-size // CHUNK_BYTES))


def message_id(artifact: str, index: int) -> str:
    """The message id of a chunk, unique among the chunks of its sender."""
    return f"{artifact}-{index}"


def index_of(message_id: str) -> int | None:
    """The index in the message id of a chunk; None for any other message id, because a sandbox may choose any."""
    index = message_id.rpartition("-")[2]
    valid = index.isdecimal() and index.isascii() and len(index) <= _MAX_INDEX_DIGITS
    return int(index) if valid else None


def digest_of(file: IO[bytes], size: int | None = None) -> tuple[int, str]:
    """The size of a file, and its SHA-256 in hexadecimal. With `size`, only the first `size` bytes are read."""
    digest = hashlib.sha256()
    size = file.seek(0, os.SEEK_END) if size is None else size
    file.seek(0)
    while block := file.read(min(_BLOCK_BYTES, size - file.tell())):
        digest.update(block)
    return file.tell(), digest.hexdigest()


class ArtifactBuilder:
    """Builds the reference to an artifact from its chunks, which are added in order."""

    def __init__(self, project: str, sandbox: str, artifact: str, media_type: str) -> None:
        self.subject = ARTIFACT.fill(project=project, sandbox=sandbox, artifact=artifact)
        self.size = self.chunks = 0
        self._artifact, self._media_type = artifact, media_type
        self._digest = hashlib.sha256()

    def add(self, chunk: bytes) -> str:
        """Add the next chunk; returns its message id."""
        self._digest.update(chunk)
        self.size += len(chunk)
        self.chunks += 1
        return message_id(self._artifact, self.chunks - 1)

    def reference(self) -> ArtifactRef:
        """The reference to the chunks added so far."""
        return ArtifactRef(
            artifact=self._artifact,
            subject=self.subject,
            size=self.size,
            sha256=self._digest.hexdigest(),
            chunks=self.chunks,
            media_type=self._media_type,
        )


class ChunkReceiver:
    """Records which chunks of an artifact were received. It trusts neither the reference nor the chunks.

    Raises `InvalidChunkError` for a reference whose number of chunks does not match its size.
    """

    def __init__(self, reference: ArtifactRef) -> None:
        expected = chunk_count(reference.size)
        if reference.chunks != expected:
            raise InvalidChunkError(f"{reference.size} bytes are {expected} chunks, not {reference.chunks}")
        self._reference = reference
        self._received: set[int] = set()
        self.after = 0
        """The stream sequence after which to request the next chunk."""

    @property
    def complete(self) -> bool:
        """Whether all chunks were received."""
        return len(self._received) == self._reference.chunks

    @property
    def moved(self) -> int:
        """The number of received bytes, to within a chunk: every received chunk counts as `CHUNK_BYTES`."""
        return len(self._received) * CHUNK_BYTES

    @property
    def first_missing(self) -> int:
        """The index of the first chunk that was not received."""
        return next(index for index in range(self._reference.chunks + 1) if index not in self._received)

    def accept(self, chunk: ArtifactPiece) -> int:
        """Record a chunk; returns its offset in the whole. Raises `InvalidChunkError`."""
        last = self._reference.chunks - 1
        expected = CHUNK_BYTES if chunk.index < last else self._reference.size - last * CHUNK_BYTES
        if chunk.index > last or len(chunk.data) != expected:
            raise InvalidChunkError(
                f"chunk {chunk.index + 1} of {last + 1} has {len(chunk.data)} bytes instead of {max(0, expected)}"
            )
        if chunk.after <= self.after:
            raise InvalidChunkError("the stream sequence does not increase: the chunks would repeat endlessly")
        self.after = chunk.after
        self._received.add(chunk.index)
        return chunk.index * CHUNK_BYTES
