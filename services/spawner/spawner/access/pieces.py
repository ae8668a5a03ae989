"""Pieces of large files: held in ARTIFACTS for an hour, and given out one by one. Nothing is kept in a replica.

A piece's message id ends with its index, so that the same one twice is one, and a reader knows where it belongs.
"""

from typing import Final

import nats.errors
import nats.js.errors
from nats.js.api import RawStreamMsg

from sandherd.bus.connection import Bus, PublishFailedError, PublishRefusedError
from sandherd.bus.reading import next_unchanging_on
from sandherd.bus.service import Asked
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import INLINE_BYTES, ArtifactPiece, DownloadChunk, Fetch, Held, UploadChunk
from sandherd.contracts.subjects import ARTIFACT
from sandherd.telemetry.meters import Meters
from spawner.access import refusals
from spawner.access.reaching import Reach
from spawner.sandboxes.record import SandboxRecord

LIFE: Final = "3600s"
"""How long a piece waits to be fetched."""
_LONGEST_INDEX: Final = 9
"""A number of more digits is nobody's, and Python reads none of thousands."""


class Pieces:
    """Answers `upload_chunk`, `download_chunk` and `fetch`. `cap` is in bytes."""

    def __init__(self, bus: Bus, reach: Reach, cap: int, meters: Meters) -> None:
        self._bus = bus
        self._reach = reach
        self._cap = cap
        self._meters = meters

    async def hold(self, asked: Asked[UploadChunk]) -> Held:
        """Keep a piece for an hour. Raises `ContractError` (`too_large`, `unavailable`, and what `Reach` refuses)."""
        request = asked.request
        refusals.refuse(refusals.piece_refusal(request.index, len(request.data), self._cap))
        await self._reach.open_record(asked.project, request.sandbox)
        subject = _subject(asked.project, request.sandbox, request.artifact)
        # With the artifact in it: a worker chooses its own messages' ids, and can't know an artifact's random name.
        msg_id = f"{asked.project}.{request.sandbox}.{request.artifact}-{request.index}"
        try:
            acknowledged = await self._bus.publish(subject, request.data, msg_id=msg_id, headers={"Nats-TTL": LIFE})
        except (PublishFailedError, PublishRefusedError) as error:
            raise ContractError(
                Code.UNAVAILABLE, f"the broker does not keep this piece: {error}", remedy="send it again"
            ) from error
        if not acknowledged.duplicate:
            self._meters.count("sandherd_uploaded_bytes_total", len(request.data))
        return Held(index=request.index)

    async def give(self, asked: Asked[DownloadChunk]) -> ArtifactPiece:
        """The next piece, to a person. Raises `ContractError` (`not_found` when there is none)."""
        refusals.refuse(refusals.project_refusal(asked.project))
        request = asked.request
        piece = await self._next(asked.project, request.sandbox, request.artifact, request.after)
        self._meters.count("sandherd_downloaded_bytes_total", len(piece.data))
        return piece

    async def fetch(self, asked: Asked[Fetch]) -> ArtifactPiece:
        """The next piece, to a worker: of what its own sandbox was given, or one that it goes on from has left."""
        asker, request = asked.names["sandbox"], asked.request
        record = await self._reach.record(asked.project, asker)
        if not may_fetch(record, request.owner):
            raise ContractError(
                Code.REFUSED, f"artifacts of {request.owner} are not for sandbox {asker}", field="owner"
            )
        return await self._next(asked.project, request.owner, request.artifact, request.after)

    async def _next(self, project: str, sandbox: str, artifact: str, after: int) -> ArtifactPiece:
        subject = _subject(project, sandbox, artifact)
        try:
            # By subject and place, so that it costs the same however long the stream is.
            found = await next_unchanging_on(self._bus, "ARTIFACTS", subject, after + 1)
        except nats.js.errors.NotFoundError:
            raise _no_piece(artifact, after) from None
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
            raise ContractError(
                Code.UNAVAILABLE, f"the broker does not give this piece: {error!r}", remedy="ask again"
            ) from error
        return read_piece(found, artifact)


def may_fetch(record: SandboxRecord, owner: str) -> bool:
    """Whether a sandbox may have what lies under `owner`'s subjects."""
    if record.ended:
        return False
    return owner in {record.sandbox, record.resumes, record.previous.sandbox if record.previous else None}


def read_piece(found: RawStreamMsg, artifact: str) -> ArtifactPiece:
    """A piece as it was stored. Raises `ContractError` for what a sandbox put there that is none."""
    data, index = found.data or b"", (found.headers or {}).get("Nats-Msg-Id", "").rpartition("-")[2]
    number = index.isdecimal() and index.isascii() and len(index) <= _LONGEST_INDEX
    if not number or len(data) > INLINE_BYTES:
        raise ContractError(Code.CONFLICT, f"{artifact} holds something that is no piece of it", field="artifact")
    return ArtifactPiece(data=data, index=int(index), after=found.seq or 0)


def _no_piece(artifact: str, after: int) -> ContractError:
    return ContractError(
        Code.NOT_FOUND,
        f"{artifact} has no piece after {after}",
        field="artifact",
        remedy="pieces are kept for an hour: begin the transfer again if one is missing",
    )


def _subject(project: str, sandbox: str, artifact: str) -> str:
    return ARTIFACT.fill(project=project, sandbox=sandbox, artifact=artifact)
