"""Limits the stored bytes of one project's uploads, because all projects share the stream ARTIFACTS."""

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.contracts.chunks import CHUNK_BYTES
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import UPLOAD_PREFIX
from sandherd.contracts.subjects import ARTIFACT
from spawner.access import refusals

_READ_EVERY: Final = 10.0
"""Seconds after which the broker is queried again. Until then, changes by other replicas and by expiry are not seen."""


@dataclass(slots=True)
class _Stored:
    """The stored bytes of a project's uploads, and when the broker was last queried."""

    bytes: int = 0
    read_at: float | None = None
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class UploadQuota:
    """Admits chunks of uploads, up to `limit` bytes of each project. Each stored chunk counts as a full one."""

    def __init__(self, bus: Bus, limit: int) -> None:
        self._bus = bus
        self._limit = limit
        self._projects: defaultdict[str, _Stored] = defaultdict(_Stored)

    async def admit(self, project: str) -> None:
        """Count one more chunk. Raises `ContractError` (`refused` beyond the limit, `unavailable`)."""
        stored = self._projects[project]
        async with stored.reading:
            if stored.read_at is None or time.monotonic() - stored.read_at > _READ_EVERY:
                stored.bytes, stored.read_at = await self._read(project), time.monotonic()
        refusals.refuse(refusals.upload_refusal(project, stored.bytes, self._limit))
        stored.bytes += CHUNK_BYTES

    async def _read(self, project: str) -> int:
        subjects = ARTIFACT.pattern({"project": project})
        try:
            info = await self._bus.js.stream_info("ARTIFACTS", subjects_filter=subjects)
        except BROKER_ERRORS as error:
            raise ContractError(
                Code.UNAVAILABLE, f"the broker did not return what is stored: {error!r}", remedy="send it again"
            ) from error
        counts = (info.state.subjects or {}).items()
        return CHUNK_BYTES * sum(count for subject, count in counts if subject.split(".")[-1].startswith(UPLOAD_PREFIX))
