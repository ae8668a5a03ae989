"""Chunks of large files: stored in stream ARTIFACTS for an hour, returned one by one. Replicas hold no state."""

from typing import Final

import nats.js.errors
from nats.js.api import RawStreamMsg

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus, PublishFailedError, PublishRefusedError
from sandherd.bus.errors import NoResponderError, RefusedError, RequestTimeoutError
from sandherd.bus.kv import next_immutable_message
from sandherd.contracts.chunks import CHUNK_BYTES, index_of, message_id
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.headers import LIFETIME, MESSAGE_ID
from sandherd.contracts.names import SANDBOX_PREFIX
from sandherd.contracts.requests import (
    ArtifactPiece,
    ChunkStored,
    DownloadChunk,
    Fetch,
    ReadStoredArtifact,
    UploadChunk,
)
from sandherd.contracts.subjects import ARTIFACT
from sandherd.service.service import IncomingRequest
from sandherd.telemetry.meters import Meters
from spawner.access import refusals
from spawner.access.upload_quota import UploadQuota
from spawner.access.worker_requests import WorkerRequests
from spawner.sandboxes.sandbox_record import SandboxRecord

LIFE: Final = "3600s"
"""How long a chunk is stored."""
TASK_LIFE: Final = "604800s"
"""How long a chunk of a task's work is stored: the maximum age in the stream. It is deleted before if the task's record
is deleted or the task is rejected, and about an hour after the upload if there is no record
(`tasks.unsubmitted_uploads`)."""


_STORE_OFFSET: Final = 1 << 52
"""Added to the index of a chunk in the artifact store, to distinguish it from a sequence number of the stream.

No stream has that many messages, and JSON numbers are exact up to twice this value.
"""


class FileChunks:
    """Handles the requests `upload_chunk`, `download_chunk` and `fetch`. `cap` is the maximum bytes of a file."""

    def __init__(self, bus: Bus, workers: WorkerRequests, cap: int, meters: Meters, quota: UploadQuota) -> None:
        self._bus = bus
        self._workers = workers
        self._cap = cap
        self._meters = meters
        self._quota = quota

    async def store(self, incoming: IncomingRequest[UploadChunk]) -> ChunkStored:
        """Store a chunk for an hour; a chunk of a task's work as long as the task's record, at most for `TASK_LIFE`.

        Raises `ContractError` (`too_large`, `refused` beyond the project's quota, `unavailable`, as `WorkerRequests`).
        """
        request = incoming.request
        refusals.refuse(refusals.chunk_refusal(request.index, len(request.data), self._cap))
        of_task = not request.sandbox.startswith(SANDBOX_PREFIX)
        if not of_task:
            await self._workers.open_record(incoming.project, request.sandbox)
        refusals.refuse(refusals.project_refusal(incoming.project))
        await self._quota.admit(incoming.project)
        subject = _subject(incoming.project, request.sandbox, request.artifact)
        # The id contains the artifact's random name: a worker can't know it and publish a message with this id before.
        msg_id = message_id(f"{incoming.project}.{request.sandbox}.{request.artifact}", request.index)
        try:
            headers = {LIFETIME: TASK_LIFE if of_task else LIFE}
            acknowledged = await self._bus.publish(subject, request.data, msg_id=msg_id, headers=headers)
        except (PublishFailedError, PublishRefusedError) as error:
            raise ContractError(
                Code.UNAVAILABLE, f"the broker did not store this chunk: {error}", remedy="send it again"
            ) from error
        if not acknowledged.duplicate:
            self._meters.count("sandherd_uploaded_bytes_total", len(request.data))
        return ChunkStored(index=request.index)

    async def next_chunk(self, incoming: IncomingRequest[DownloadChunk]) -> ArtifactPiece:
        """The next chunk, for a client. Raises `ContractError` (`not_found` if it does not exist)."""
        refusals.refuse(refusals.project_refusal(incoming.project))
        project, request = incoming.project, incoming.request
        chunk = await self._next(project, request.sandbox, request.artifact, request.after)
        if chunk is None:
            if await self._workers.has_record(project, request.sandbox):
                raise refusals.error_of(refusals.no_artifact(request.sandbox, request.artifact))
            raise refusals.error_of(refusals.no_owner(project, request.sandbox, request.artifact))
        self._meters.count("sandherd_downloaded_bytes_total", len(chunk.data))
        return chunk

    async def fetch(self, incoming: IncomingRequest[Fetch]) -> ArtifactPiece:
        """The next chunk, for a worker. Raises `ContractError` (`refused` if `may_fetch` does not allow it)."""
        requester, request = incoming.names["sandbox"], incoming.request
        record = await self._workers.record(incoming.project, requester)
        if not may_fetch(record, request.owner):
            raise ContractError(
                Code.REFUSED, f"sandbox {requester} may not read artifacts of {request.owner}", field="owner"
            )
        chunk = await self._next(incoming.project, request.owner, request.artifact, request.after)
        if chunk is None:
            raise refusals.error_of(refusals.no_artifact(request.owner, request.artifact))
        return chunk

    async def _next(self, project: str, sandbox: str, artifact: str, after: int) -> ArtifactPiece | None:
        """The chunk after this sequence; None if there is no such artifact. Raises `ContractError` after the last one.

        Chunks that the stream no longer has are read from the artifact store, if there is one. Their sequence numbers
        are higher than all numbers of the stream. A transfer that began with the stream may get some chunks twice.
        """
        subject = _subject(project, sandbox, artifact)
        if after < _STORE_OFFSET and (found := await self._find(subject, after + 1)):
            return _read_chunk(found, artifact)
        if stored := await self._find_stored(project, sandbox, artifact, max(0, after - _STORE_OFFSET)):
            return stored
        if after and (after > _STORE_OFFSET or await self._find(subject, 1)):
            raise refusals.error_of(refusals.no_further_chunk(sandbox, artifact, after))
        return None

    async def _find_stored(self, project: str, owner: str, artifact: str, index: int) -> ArtifactPiece | None:
        """A chunk from the artifact store; None if it is not there.

        If event-ingest does not run: None for the first chunk, `ContractError` for a later one.
        """
        try:
            chunk = await self._bus.ask(ReadStoredArtifact(owner=owner, artifact=artifact, index=index), project)
        except NoResponderError:
            if not index:
                return None
            raise ContractError(
                Code.UNAVAILABLE, "event-ingest, which has this artifact, does not run", remedy="repeat the request"
            ) from None
        except RefusedError as error:
            if error.problem.code is Code.NOT_FOUND:
                return None
            raise refusals.error_of(error.problem) from error
        except RequestTimeoutError as error:
            raise ContractError(
                Code.UNAVAILABLE, f"event-ingest did not return this chunk: {error}", remedy="repeat the request"
            ) from error
        return chunk.model_copy(update={"after": _STORE_OFFSET + chunk.after})

    async def _find(self, subject: str, first: int) -> RawStreamMsg | None:
        try:
            # By subject and sequence, so that the cost does not depend on the length of the stream.
            return await next_immutable_message(self._bus, "ARTIFACTS", subject, first)
        except nats.js.errors.NotFoundError:
            return None
        except BROKER_ERRORS as error:
            raise ContractError(
                Code.UNAVAILABLE, f"the broker did not return this chunk: {error!r}", remedy="repeat the request"
            ) from error


def may_fetch(record: SandboxRecord, owner: str) -> bool:
    """Whether a sandbox may read artifacts of `owner`: itself, its task, or a sandbox that its inputs come from."""
    if record.ended:
        return False
    earlier = {record.resumes, record.previous.sandbox if record.previous else None}
    return owner in {record.sandbox, record.task, *earlier, *(one.sandbox for one in record.inputs)}


def _read_chunk(found: RawStreamMsg, artifact: str) -> ArtifactPiece:
    """The chunk in a message. Raises `ContractError` if it is not a chunk, because sandboxes can publish there too."""
    data, index = found.data or b"", index_of((found.headers or {}).get(MESSAGE_ID, ""))
    if index is None or len(data) > CHUNK_BYTES:
        raise ContractError(Code.CONFLICT, f"{artifact} contains an invalid chunk", field="artifact")
    return ArtifactPiece(data=data, index=index, after=found.seq or 0)


def _subject(project: str, sandbox: str, artifact: str) -> str:
    return ARTIFACT.fill(project=project, sandbox=sandbox, artifact=artifact)
