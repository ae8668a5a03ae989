"""Reads and verifies an artifact in the stream that transports it."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.contracts.chunks import CHUNK_BYTES, ChunkReceiver, InvalidChunkError, chunk_count, digest_of, index_of
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.headers import MESSAGE_ID
from sandherd.contracts.requests import ArtifactPiece

STREAM: Final = "ARTIFACTS"
_BATCH_SIZE: Final = 64
_BATCH_BYTES: Final = 4 * 1024 * 1024
_MAX_MEMORY_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of an artifact in memory. A larger one is in a temporary file."""


class IncompleteArtifactError(Exception):
    """The stream does not have all chunks of an artifact."""


class WrongContentError(IncompleteArtifactError):
    """The stream has another content than the event refers to. To read it again would give the same result."""


async def receive(bus: Bus, reference: ArtifactRef, file: IO[bytes]) -> None:
    """Write the artifact into an empty file.

    Raises `IncompleteArtifactError`. If the broker does not respond, raises nats-py's errors or `TimeoutError`.
    """
    receiver = ChunkReceiver(reference)
    received = 0
    while not receiver.complete:
        if received > 2 * reference.chunks + _BATCH_SIZE:
            raise WrongContentError("its chunks repeat")
        messages = await read_batch(
            bus, STREAM, reference.subject, first=receiver.after + 1, limit=_BATCH_SIZE, max_bytes=_BATCH_BYTES
        )
        if not messages:
            raise IncompleteArtifactError(f"chunk {receiver.first_missing + 1} of {reference.chunks} is not stored")
        received += len(messages)
        await asyncio.to_thread(_accept_all, receiver, messages, file)
    if await asyncio.to_thread(digest_of, file) != (reference.size, reference.sha256):
        raise WrongContentError("its content has another digest than its event states")


def _accept_all(receiver: ChunkReceiver, messages: Sequence[StoredMessage], file: IO[bytes]) -> None:
    for message in messages:
        _accept(receiver, message, file)


def _accept(receiver: ChunkReceiver, message: StoredMessage, file: IO[bytes]) -> None:
    index = index_of(message.headers.get(MESSAGE_ID, ""))
    if index is None or len(message.data) > CHUNK_BYTES:
        raise WrongContentError("it contains an invalid chunk")
    chunk = ArtifactPiece(data=message.data, index=index, after=message.sequence)
    try:
        file.seek(receiver.accept(chunk))
    except InvalidChunkError as error:
        raise WrongContentError(str(error)) from error
    file.write(message.data)


@contextmanager
def artifact_file(size: int) -> Iterator[IO[bytes]]:
    """An empty temporary file for an artifact of this size: in memory, unless it is large."""
    with tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES) as file:
        if size > _MAX_MEMORY_BYTES:
            file.rollover()  # the last chunk may come first, and would need memory for all chunks before it
        opened: Any = file
        yield opened


def chunks_of(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The content of a file of this size in chunks of `CHUNK_BYTES`; at least one, which may be empty."""
    file.seek(0)
    for _ in range(chunk_count(size)):
        yield file.read(CHUNK_BYTES)
