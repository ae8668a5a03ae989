"""The handlers of requests about sandboxes, and the maximum of each that a replica handles concurrently."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from sandherd.bus.connection import Bus
from sandherd.contracts.requests import (
    Download,
    DownloadChunk,
    Exec,
    ExecInput,
    ExecKill,
    ExecStatus,
    Fetch,
    GetAgentServer,
    GetRuntimeLogs,
    ListFiles,
    ListPeers,
    ListRuntimes,
    PortRead,
    PortWrite,
    Request,
    Upload,
    UploadChunk,
)
from sandherd.service.requests import Answerer, IncomingRequest
from sandherd.settings import Settings
from spawner.access.agent_servers import AgentServers
from spawner.access.catalogue import catalogue
from spawner.access.file_chunks import FileChunks
from spawner.access.operations import SandboxAccess
from spawner.access.peers import Peers
from spawner.access.ports import Ports
from spawner.access.refusals import MIB
from spawner.access.runtime_logs import RuntimeLogs
from spawner.access.upload_quota import UploadQuota
from spawner.access.worker_requests import WorkerRequests
from spawner.live_state import LiveState
from spawner.runtimes.contract import Runtime
from spawner.runtimes.registry import origins
from spawner.spec_resolution import SpawnPolicy

_LONG_POLLS: Final = 2000
"""Maximum long polls: one for each client that follows a command or a transfer."""
_SHORT: Final = 200
_CHUNKS: Final = 64
"""Maximum requests that each hold a chunk in memory."""
_LOGS: Final = 8
"""Maximum requests for logs: each may hold some megabytes in memory."""

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {
    Exec: _LONG_POLLS,
    ExecStatus: _LONG_POLLS,
    ExecKill: _SHORT,
    ExecInput: _SHORT,
    PortWrite: _LONG_POLLS,
    PortRead: _LONG_POLLS,
    ListFiles: _SHORT,
    Upload: _LONG_POLLS,
    Download: _LONG_POLLS,
    UploadChunk: _CHUNKS,
    DownloadChunk: _CHUNKS,
    Fetch: _CHUNKS,
    GetAgentServer: _SHORT,
    GetRuntimeLogs: _LOGS,
    ListPeers: 1,
    ListRuntimes: 1,
}
"""The requests handled here, and the maximum of each that a replica handles concurrently."""


def make_handlers(
    bus: Bus,
    live: LiveState,
    settings: Settings,
    *,
    policy: SpawnPolicy,
    runtimes: Mapping[str, Runtime],
    harnesses: Sequence[str],
    secrets_key: str,
) -> dict[type[Request[Any]], Answerer]:
    """The handlers, one for each request in `ANSWERED`."""
    workers, cap = WorkerRequests(bus, live), settings.max_file_mb * MIB
    access, quota = SandboxAccess(workers, cap, live.meters), UploadQuota(bus, settings.project_uploads_mb * MIB)
    ports = Ports(workers, runtimes)
    chunks = FileChunks(bus, workers, cap, live.meters, quota)
    offer = catalogue(settings, policy, runtimes, harnesses=harnesses, secrets_key=secrets_key, origins=origins())

    async def list_runtimes(_incoming: IncomingRequest[ListRuntimes]) -> BaseModel:
        return offer

    return {
        Exec: access.exec,
        ExecStatus: access.exec_status,
        ExecKill: access.exec_kill,
        ExecInput: access.exec_input,
        PortWrite: ports.write,
        PortRead: ports.read,
        ListFiles: access.list_files,
        Upload: access.upload,
        Download: access.download,
        UploadChunk: chunks.store,
        DownloadChunk: chunks.next_chunk,
        Fetch: chunks.fetch,
        GetAgentServer: AgentServers(workers, runtimes).view,
        GetRuntimeLogs: RuntimeLogs(bus, workers, runtimes, quota).view,
        ListPeers: Peers(live).of,
        ListRuntimes: list_runtimes,
    }
