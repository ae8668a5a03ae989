"""Reads and stores artifacts of branches: bundles, diffs, and archives of Git LFS objects, in the stream ARTIFACTS."""

import asyncio
from pathlib import Path
from typing import IO, Final

import nats.js.errors

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus, PublishFailedError, PublishRefusedError
from sandherd.bus.kv import next_immutable_message
from sandherd.contracts.chunks import (
    CHUNK_BYTES,
    ArtifactBuilder,
    ChunkReceiver,
    InvalidChunkError,
    digest_of,
    index_of,
)
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.headers import LIFETIME, MESSAGE_ID
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import ArtifactPiece
from spawner.records.base_record import StoreUnavailableError

BUNDLE: Final = "application/x-git-bundle"
"""The media type of a bundle."""
DIFF: Final = "text/x-diff; charset=utf-8"
"""The media type of a diff."""
_CHUNK_LIFETIME: Final = "604800s"
"""The lifetime of a chunk: seven days."""


class ArtifactMissingError(Exception):
    """The artifact is not stored, or differs from its reference. A retry can't succeed."""


class BranchArtifacts:
    """Artifacts of tasks, sandboxes and branches.

    Methods raise `StoreUnavailableError` if the broker does not respond, or refuses a chunk.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def read(self, reference: ArtifactRef, file: IO[bytes], limit: int) -> None:
        """Write the artifact to a file. Raises `ArtifactMissingError`, also if the artifact exceeds `limit` bytes."""
        if reference.size > limit:
            raise ArtifactMissingError(f"{reference.artifact} has {reference.size} bytes; the limit is {limit}")
        try:
            receiver = ChunkReceiver(reference)
            while not receiver.complete:
                chunk = await self._read_chunk(reference, receiver.after)
                file.seek(receiver.accept(chunk))
                file.write(chunk.data)
        except InvalidChunkError as error:
            raise ArtifactMissingError(str(error)) from None
        if await asyncio.to_thread(digest_of, file) != (reference.size, reference.sha256):
            raise ArtifactMissingError(f"{reference.artifact} differs from the size or SHA-256 of its reference")

    async def store(self, file: Path, project: str, owner: str, media_type: str) -> ArtifactRef:
        """Store a file's content for seven days. `owner` is the name of the task or the branch that it belongs to."""
        builder = ArtifactBuilder(project, owner, new_name("art"), media_type)
        with file.open("rb") as content:
            while (chunk := await asyncio.to_thread(content.read, CHUNK_BYTES)) or builder.chunks == 0:
                await self._publish(builder.subject, chunk, f"{project}.{owner}.{builder.add(chunk)}")
        return builder.reference()

    async def delete(self, reference: ArtifactRef | None) -> None:
        """Delete the chunks of an artifact, if there are any. Does nothing for None."""
        if reference is None:
            return
        try:
            await self._bus.js.purge_stream("ARTIFACTS", subject=reference.subject)
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"ARTIFACTS: {error!r}") from error

    async def _publish(self, subject: str, chunk: bytes, msg_id: str) -> None:
        try:
            await self._bus.publish(subject, chunk, msg_id=msg_id, headers={LIFETIME: _CHUNK_LIFETIME})
        except (PublishFailedError, PublishRefusedError) as error:
            raise StoreUnavailableError(f"ARTIFACTS: {error!r}") from error

    async def _read_chunk(self, reference: ArtifactRef, after: int) -> ArtifactPiece:
        """The first chunk whose sequence number in the stream is higher than `after`."""
        try:
            message = await next_immutable_message(self._bus, "ARTIFACTS", reference.subject, after + 1)
        except nats.js.errors.NotFoundError:
            raise ArtifactMissingError(f"{reference.artifact} is no longer stored") from None
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"ARTIFACTS: {error!r}") from error
        index, data = index_of((message.headers or {}).get(MESSAGE_ID, "")), message.data or b""
        if index is None or len(data) > CHUNK_BYTES:
            raise ArtifactMissingError(f"{reference.artifact} contains an invalid chunk")
        return ArtifactPiece(data=data, index=index, after=message.seq or 0)
