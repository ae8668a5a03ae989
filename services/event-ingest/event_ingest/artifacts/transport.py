"""Reads an artifact from the stream that transports it, verified."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.contracts.chunks import CHUNK_BYTES, ChunkReceiver, InvalidChunkError, chunk_count, digest_of, index_of
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.headers import MESSAGE_ID
from sandherd.contracts.requests import ArtifactPiece

STREAM: Final = "ARTIFACTS"
_BATCH: Final = 64
_BATCH_BYTES: Final = 4 * 1024 * 1024
_IN_MEMORY: Final = 8 * 1024 * 1024


class IncompleteArtifactError(Exception):
    """The stream does not have all of it, or other content than its event refers to."""


async def receive(bus: Bus, reference: ArtifactRef, file: IO[bytes]) -> None:
    """Write the artifact into an empty file.

    Raises `IncompleteArtifactError`; nats-py's errors and `TimeoutError` if the broker does not respond.
    """
    receiver = ChunkReceiver(reference)
    while not receiver.complete:
        found = await read_batch(
            bus, STREAM, reference.subject, first=receiver.after + 1, limit=_BATCH, max_bytes=_BATCH_BYTES
        )
        if not found:
            raise IncompleteArtifactError(f"chunk {receiver.first_missing + 1} of {reference.chunks} is not stored")
        for message in found:
            _accept(receiver, message, file)
    if digest_of(file) != (reference.size, reference.sha256):
        raise IncompleteArtifactError("its content has another digest than its event")


def _accept(receiver: ChunkReceiver, message: StoredMessage, file: IO[bytes]) -> None:
    index = index_of(message.headers.get(MESSAGE_ID, ""))
    if index is None or len(message.data) > CHUNK_BYTES:
        raise IncompleteArtifactError("it contains an invalid chunk")
    piece = ArtifactPiece(data=message.data, index=index, after=message.sequence)
    try:
        file.seek(receiver.accept(piece))
    except InvalidChunkError as error:
        raise IncompleteArtifactError(str(error)) from error
    file.write(message.data)


@contextmanager
def spooled() -> Iterator[IO[bytes]]:
    """An empty file for an artifact: in memory, unless it is large."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        opened: Any = file
        yield opened


def pieces_of(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Its content in pieces, as they are transferred: at least one."""
    file.seek(0)
    for _ in range(chunk_count(size)):
        yield file.read(CHUNK_BYTES)
