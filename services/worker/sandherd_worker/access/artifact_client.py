"""Fetches and stores artifacts over the current connection. `sandherd.contracts.chunks` defines the format."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Final, Literal

from sandherd.bus.connection import BusError, PublishFailedError, RefusedError
from sandherd.bus.publish_retries import BROKER_BACKOFF
from sandherd.contracts.chunks import CHUNK_BYTES, ArtifactBuilder, ChunkReceiver, InvalidChunkError, digest_of
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.headers import LIFETIME
from sandherd.contracts.names import new_name
from sandherd.contracts.requests.access import ArtifactPiece
from sandherd.contracts.requests.worker import Fetch
from sandherd_worker.assignment import Assignment
from sandherd_worker.broker_session import CurrentConnection

_RETRY_SECONDS: Final = 120.0
"""How long the request for a chunk is retried while the broker or the spawner is unavailable."""
_DOWNLOAD_LIFETIME: Final = "3600s"
"""How long a stored download can be fetched."""
_REPLY_TIMEOUT_SECONDS: Final = 10.0

Moved = Callable[[int], None]
"""A function that is called with the number of bytes transferred so far."""


@dataclass
class TransferProgress:
    """The progress of a transfer."""

    kind: Literal["file", "folder"] = "file"
    size: int = 0
    moved: int = 0

    def move(self, so_far: int) -> None:
        """Set the number of bytes transferred so far."""
        self.moved = so_far


class ArtifactClient:
    """Fetches and stores artifacts for one sandbox."""

    def __init__(self, assignment: Assignment, line: CurrentConnection) -> None:
        self._assignment, self._line = assignment, line

    async def fetch(
        self, reference: ArtifactRef, owner: str, file: IO[bytes], moved: Moved = lambda _bytes: None
    ) -> None:
        """Write an artifact's content to an empty file. `owner` is the sandbox that it is stored under.

        Raises `ContractError` if it is missing, incomplete or does not match the reference, and `OSError`.
        """
        receiver = _receiver(reference)
        while not receiver.complete:
            request = Fetch(artifact=reference.artifact, after=receiver.after, owner=owner)
            chunk = await self._request_chunk(request, reference, receiver)
            try:
                os.pwrite(file.fileno(), chunk.data, receiver.accept(chunk))
            except InvalidChunkError as error:
                remedy = "upload it again"
                raise ContractError(Code.INVALID_FIELD, str(error), field="artifact", remedy=remedy) from None
            moved(receiver.moved)
        await asyncio.to_thread(_check_digest, file, reference)

    async def upload(self, file: IO[bytes], size: int, media_type: str, moved: Moved) -> ArtifactRef:
        """Store `size` bytes of a file as an artifact, or fewer if it became smaller. Raises `BusError`, `OSError`."""
        builder = ArtifactBuilder(self._assignment.project, self._assignment.sandbox, new_name("dwn"), media_type)
        while (
            chunk := await asyncio.to_thread(_read, file, min(size - builder.size, CHUNK_BYTES))
        ) or builder.chunks == 0:
            await self._publish(builder.subject, chunk, builder.add(chunk))
            moved(builder.size)
        return builder.reference()

    async def _request_chunk(self, request: Fetch, reference: ArtifactRef, receiver: ChunkReceiver) -> ArtifactPiece:
        """Repeat the request until there is a reply. Raises `ContractError` on a refusal, or after `_RETRY_SECONDS`."""
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + _RETRY_SECONDS, 0
        while True:
            try:
                bus = await self._line.bus()
                return await bus.ask(
                    request, self._assignment.project, sandbox=self._assignment.sandbox, timeout=_REPLY_TIMEOUT_SECONDS
                )
            except RefusedError as error:
                if error.problem.code not in {Code.UNAVAILABLE, Code.BUSY}:
                    raise _refusal(error, reference, receiver) from None
                last_error: BusError = error
            except BusError as error:
                last_error = error
            if loop.time() > deadline:
                raise ContractError(Code.UNAVAILABLE, f"no chunk received within {_RETRY_SECONDS:g} s: {last_error}")
            attempt += 1
            await asyncio.sleep(BROKER_BACKOFF.delay(attempt))

    async def _publish(self, subject: str, chunk: bytes, msg_id: str) -> None:
        """Publish a chunk until the broker acknowledges it, also over new connections. Raises `PublishRefusedError`."""
        while True:
            bus = await self._line.bus()
            try:
                await bus.publish_stored(subject, chunk, msg_id=msg_id, headers={LIFETIME: _DOWNLOAD_LIFETIME})
                return
            except PublishFailedError:
                # This connection is closed for good; a new one follows soon.
                await asyncio.sleep(BROKER_BACKOFF.delay(3))


def _refusal(error: RefusedError, reference: ArtifactRef, receiver: ChunkReceiver) -> ContractError:
    problem = error.problem
    if problem.code is Code.NOT_FOUND:
        text = f"chunk {receiver.first_missing + 1} of {reference.chunks} of {reference.artifact} is missing"
        return ContractError(Code.NOT_FOUND, text, field="artifact", remedy="upload it again")
    return ContractError(problem.code, problem.message, field=problem.field, remedy=problem.remedy)


def _receiver(reference: ArtifactRef) -> ChunkReceiver:
    try:
        return ChunkReceiver(reference)
    except InvalidChunkError as error:
        raise ContractError(Code.INVALID_FIELD, str(error), field="artifact.chunks") from None


def _check_digest(file: IO[bytes], reference: ArtifactRef) -> None:
    size, sha256 = digest_of(file)
    if (size, sha256) != (reference.size, reference.sha256):
        raise ContractError(
            Code.INVALID_FIELD,
            f"the content received has the SHA-256 {sha256}, not {reference.sha256}",
            field="sha256",
            remedy="send it again",
        )
    file.seek(0)


def _read(file: IO[bytes], size: int) -> bytes:
    """At most `size` bytes; fewer at the end of the file."""
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
