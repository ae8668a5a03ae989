"""Large bytes in and out, piece by piece, over whatever connection there is at the moment.

Every piece but the last is `INLINE_BYTES` long; its place is its index. Pieces may come in any order, and twice.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import IO, Final

from sandherd.bus.connection import BusError, PublishFailedError, RefusedError, full_jitter
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
from sandherd.contracts.requests.access import INLINE_BYTES, ArtifactPiece
from sandherd.contracts.requests.worker import Fetch
from sandherd.contracts.subjects import ARTIFACT
from sandherd_worker.assignment import Assignment
from sandherd_worker.line import Line

_PATIENCE: Final = 120.0
"""How long a piece is tried for while the broker or the spawner is away, in seconds."""
_LIFE: Final = "3600s"
"""How long what was put aside for somebody to take waits for them."""
_ANSWER: Final = 10.0

Moved = Callable[[int], None]
"""Told how many bytes have moved by now."""


class Exchange:
    """Fetches artifacts and puts some aside, for one sandbox."""

    def __init__(self, who: Assignment, line: Line) -> None:
        self._who, self._line = who, line

    async def fetch(
        self, reference: ArtifactRef, owner: str, file: IO[bytes], moved: Moved = lambda _bytes: None
    ) -> None:
        """Write an artifact's content to an empty file. `owner` is the sandbox under which it lies.

        Raises `ContractError` if it is not there, not whole, or not what it should be, and `OSError`.
        """
        _check_count(reference)
        missing, after = set(range(reference.chunks)), 0
        while missing:
            piece = await self._ask(Fetch(artifact=reference.artifact, after=after, owner=owner), reference, missing)
            after = piece.after
            _check(piece, reference)
            if piece.index in missing:
                os.pwrite(file.fileno(), piece.data, piece.index * INLINE_BYTES)
                missing.remove(piece.index)
                moved((reference.chunks - len(missing)) * INLINE_BYTES)
        await asyncio.to_thread(_check_whole, file, reference.size, reference.sha256)

    async def put(self, file: IO[bytes], size: int, media_type: str, moved: Moved) -> ArtifactRef:
        """Put `size` bytes of a file aside, or what there is if it has shrunk. Raises `BusError`, `OSError`."""
        name = new_name("dwn")
        subject = ARTIFACT.fill(project=self._who.project, sandbox=self._who.sandbox, artifact=name)
        digest, total, chunks = hashlib.sha256(), 0, 0
        while (piece := await asyncio.to_thread(_read, file, min(size - total, INLINE_BYTES))) or chunks == 0:
            await self._publish(subject, piece, f"{name}-{chunks}")
            digest.update(piece)
            total += len(piece)
            chunks += 1
            moved(total)
        return ArtifactRef(
            artifact=name,
            subject=subject,
            size=total,
            sha256=digest.hexdigest(),
            chunks=chunks,
            media_type=media_type,
        )

    async def _ask(self, question: Fetch, reference: ArtifactRef, missing: set[int]) -> ArtifactPiece:
        """Ask until there is an answer. Raises `ContractError` for a refusal, or when patience is at its end."""
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + _PATIENCE, 0
        while True:
            try:
                bus = await self._line.bus()
                return await bus.ask(question, self._who.project, sandbox=self._who.sandbox, timeout=_ANSWER)
            except RefusedError as error:
                if error.problem.code not in {Code.UNAVAILABLE, Code.BUSY}:
                    raise _refusal(error, reference, missing) from None
                trouble: BusError = error
            except BusError as error:
                trouble = error
            if loop.time() > deadline:
                raise ContractError(Code.UNAVAILABLE, f"no piece came within {_PATIENCE:g} s: {trouble}")
            attempt += 1
            await asyncio.sleep(full_jitter(attempt))

    async def _publish(self, subject: str, piece: bytes, msg_id: str) -> None:
        """Publish until it is acknowledged, over one connection after the other. Raises `PublishRefusedError`."""
        while True:
            bus = await self._line.bus()
            try:
                await bus.publish_stored(subject, piece, msg_id=msg_id, headers={"Nats-TTL": _LIFE})
                return
            except PublishFailedError:
                # This connection is closed for good; the next comes soon.
                await asyncio.sleep(full_jitter(3))


def _refusal(error: RefusedError, reference: ArtifactRef, missing: set[int]) -> ContractError:
    problem = error.problem
    if problem.code is Code.NOT_FOUND:
        text = f"piece {min(missing) + 1} of {reference.chunks} of {reference.artifact} is missing"
        return ContractError(Code.NOT_FOUND, text, field="artifact", remedy="upload it again")
    return ContractError(problem.code, problem.message, field=problem.field, remedy=problem.remedy)


def _check_count(reference: ArtifactRef) -> None:
    expected = max(1, -(-reference.size // INLINE_BYTES))
    if reference.chunks != expected:
        text = f"{reference.size} bytes are {expected} pieces, not {reference.chunks}"
        raise ContractError(Code.INVALID_FIELD, text, field="artifact.chunks")


def _check(piece: ArtifactPiece, reference: ArtifactRef) -> None:
    last = reference.chunks - 1
    expected = INLINE_BYTES if piece.index < last else reference.size - last * INLINE_BYTES
    if piece.index > last or len(piece.data) != expected:
        text = f"piece {piece.index + 1} of {reference.chunks} has {len(piece.data)} bytes, where {expected} belong"
        raise ContractError(Code.INVALID_FIELD, text, field="artifact", remedy="upload it again")


def _check_whole(file: IO[bytes], size: int, sha256: str) -> None:
    file.seek(0)
    digest = hashlib.sha256()
    while part := file.read(INLINE_BYTES):
        digest.update(part)
    found = digest.hexdigest()
    if found != sha256 or os.fstat(file.fileno()).st_size != size:
        raise ContractError(
            Code.INVALID_FIELD,
            f"what came has the SHA-256 {found}, not {sha256}",
            field="sha256",
            remedy="send it again",
        )
    file.seek(0)


def _read(file: IO[bytes], size: int) -> bytes:
    """So many bytes, or what is left."""
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
