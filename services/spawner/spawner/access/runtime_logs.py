"""The last lines of the log that a runtime has of a sandbox, for users: in the reply or as an artifact."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final

from sandherd.bus.connection import Bus, PublishFailedError, PublishRefusedError
from sandherd.contracts.chunks import CHUNK_BYTES, ArtifactBuilder
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.headers import LIFETIME
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import GetRuntimeLogs, RuntimeLog
from sandherd.service.service import IncomingRequest
from spawner.access.file_chunks import LIFE
from spawner.access.upload_quota import UploadQuota
from spawner.access.worker_requests import WorkerRequests
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault
from spawner.runtimes.runtime_logs import LogQuery, LogSource
from spawner.sandboxes.runtime_calls import call_with_timeout
from spawner.sandboxes.sandbox_record import SandboxRecord

_SECONDS: Final = 20.0
_CODES: Final = {RuntimeFault.LOST: Code.NOT_FOUND, RuntimeFault.REFUSED: Code.REFUSED}


class RuntimeLogs:
    """Handles the request `runtime_logs`."""

    def __init__(self, bus: Bus, workers: WorkerRequests, runtimes: Mapping[str, Runtime], quota: UploadQuota) -> None:
        self._bus, self._workers, self._runtimes, self._quota = bus, workers, runtimes, quota

    async def view(self, incoming: IncomingRequest[GetRuntimeLogs]) -> RuntimeLog:
        """The last lines of a sandbox's log. Raises `ContractError`, also if its runtime has none."""
        request = incoming.request
        record = await self._workers.record(incoming.project, request.sandbox)
        data, truncated = await self._read(record, request)
        small = len(data) <= CHUNK_BYTES
        return RuntimeLog(
            sandbox=request.sandbox,
            size=len(data),
            data=data if small else None,
            artifact=None if small else await self._store(record, data),
            truncated=truncated,
        )

    async def _read(self, record: SandboxRecord, request: GetRuntimeLogs) -> tuple[bytes, bool]:
        runtime: object = self._runtimes.get(record.runtime)
        if not isinstance(runtime, LogSource):
            raise ContractError(
                Code.REFUSED,
                f"runtime {record.runtime} keeps no log of a sandbox",
                field="sandbox",
                remedy=f"read the output of the agent of {record.sandbox}",
            )
        try:
            pieces = runtime.logs(record.runtime_unit, LogQuery(lines=request.lines))
            return await call_with_timeout(tail(pieces, request.max_bytes), _SECONDS, f"runtime {record.runtime}")
        except RuntimeFailedError as error:
            raise ContractError(
                _CODES.get(error.fault, Code.UNAVAILABLE),
                f"the log of {record.sandbox} (state {record.state}): {error}",
                field="sandbox",
                remedy=f"a log is deleted with its sandbox: read the trajectory of {record.sandbox}",
            ) from error

    async def _store(self, record: SandboxRecord, data: bytes) -> ArtifactRef:
        """Store the log as chunks for an hour. They count towards the project's quota. Raises `ContractError`."""
        # The name has the prefix of uploads, so that the artifact counts as one (`upload_quota`).
        artifact = ArtifactBuilder(record.project, record.sandbox, new_name("upl"), "text/plain")
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = data[start : start + CHUNK_BYTES]
            await self._quota.admit(record.project)
            try:
                msg_id = f"{record.project}.{record.sandbox}.{artifact.add(chunk)}"
                await self._bus.publish(artifact.subject, chunk, msg_id=msg_id, headers={LIFETIME: LIFE})
            except (PublishFailedError, PublishRefusedError) as error:
                raise ContractError(
                    Code.UNAVAILABLE, f"the broker did not store the log: {error}", remedy="repeat the request"
                ) from error
        return artifact.reference()


async def tail(pieces: AsyncIterator[bytes], limit: int) -> tuple[bytes, bool]:
    """The last `limit` bytes of a log, and whether it has more. The log is never in memory as a whole."""
    found, truncated = bytearray(), False
    async with aclosing(pieces) as log:  # type: ignore[type-var]  # a generator
        async for piece in log:
            found += piece
            if len(found) > limit:
                truncated = True
                del found[:-limit]
            await asyncio.sleep(0)  # a log that is read from memory must not hold up other requests
    return bytes(found), truncated
