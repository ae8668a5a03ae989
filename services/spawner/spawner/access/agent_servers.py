"""The address of a sandbox's agent server, from a file that is read through the runtime; its key only on request.

A sandbox is not trusted: the file is validated, and only its known fields are returned.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sandherd.contracts.agent_server import ServerState
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.model import Count
from sandherd.contracts.requests import AgentServerView, GetAgentServer
from sandherd.service.service import IncomingRequest
from spawner.access import refusals
from spawner.access.worker_requests import WorkerRequests
from spawner.runtimes.contract import Runtime, RuntimeFailedError
from spawner.sandboxes.runtime_calls import call_with_timeout
from spawner.sandboxes.sandbox_record import SandboxRecord

_STATUS_FILE: Final = "state/agent-server.json"
_MAX_STATUS_BYTES: Final = 16 * 1024
_RUNTIME_TIMEOUT_SECONDS: Final = 10.0
_MAX_ERROR_LENGTH: Final = 2000


class AgentServerStatus(BaseModel):
    """The status of an agent server, as its sandbox's worker wrote it."""

    model_config = ConfigDict(extra="ignore")

    kind: Annotated[str, StringConstraints(pattern="^[a-z]{1,32}$")]
    state: ServerState
    starts: Count = 0
    port: Annotated[int, Field(ge=1024, le=65_535)] | None = None
    key: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_-]{32,128}$")] = Field(repr=False)
    error: str | None = None


class AgentServers:
    """Handles the request `agent_server`."""

    def __init__(self, workers: WorkerRequests, runtimes: Mapping[str, Runtime]) -> None:
        self._workers = workers
        self._runtimes = runtimes

    async def view(self, incoming: IncomingRequest[GetAgentServer]) -> AgentServerView:
        """The status and the address of a sandbox's agent server. Raises `ContractError`."""
        record = await self._workers.open_record(incoming.project, incoming.request.sandbox)
        runtime = self._runtimes.get(record.runtime)
        if runtime is None:
            raise ContractError(Code.UNAVAILABLE, f"runtime {record.runtime} no longer exists here")
        try:
            return await _view(runtime, record, incoming.request)
        except RuntimeFailedError as error:
            code = Code.REFUSED if error.permanent else Code.UNAVAILABLE
            raise ContractError(code, str(error), field="sandbox") from error


async def _view(runtime: Runtime, record: SandboxRecord, request: GetAgentServer) -> AgentServerView:
    what = f"runtime {runtime.name}"
    document = await call_with_timeout(
        runtime.read(record.runtime_unit, _STATUS_FILE, _MAX_STATUS_BYTES), _RUNTIME_TIMEOUT_SECONDS, what
    )
    status = read(document, record.sandbox)
    ready = status.state == "ready" and status.port is not None
    found = (
        await call_with_timeout(runtime.address(record.runtime_unit, status.port), _RUNTIME_TIMEOUT_SECONDS, what)
        if ready and status.port
        else None
    )
    return AgentServerView(
        sandbox=record.sandbox,
        kind=status.kind,
        state=status.state,
        starts=status.starts,
        url=found.url if found else None,
        key=status.key if request.with_key else None,
        headers=dict(found.headers) or None if found and request.with_key else None,
        error=None if status.error is None else refusals.plain(status.error[:_MAX_ERROR_LENGTH]),
    )


def read(document: bytes | None, sandbox: str) -> AgentServerStatus:
    """Parse the status file. Pure. Raises `ContractError` if it does not exist or is invalid."""
    if document is None:
        raise refusals.error_of(
            Problem(
                code=Code.NOT_FOUND,
                message=f"sandbox {sandbox} has no agent server, or has not started it yet",
                field="sandbox",
                remedy="create a sandbox with an agent server; it publishes agent.server_ready",
            )
        )
    try:
        return AgentServerStatus.model_validate_json(document, strict=True)
    except ValidationError as error:
        message = f"the agent server status of sandbox {sandbox} is invalid"
        raise ContractError(Code.UNAVAILABLE, message, field="sandbox", remedy="repeat the request") from error
