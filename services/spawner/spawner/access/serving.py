"""Where the agent server of a sandbox is: read from its own folder through its runtime, its key only when asked for.

A sandbox is not trusted: what its file says is taken for what it may be, and nothing else of it is repeated.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sandherd.bus.service import Asked
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.quantities import Count
from sandherd.contracts.requests import AgentServerView, AskAgentServer
from sandherd.contracts.serving import ServerState
from spawner.access import refusals
from spawner.access.reaching import Reach
from spawner.runtimes.contract import Runtime, RuntimeFailedError
from spawner.sandboxes.record import SandboxRecord
from spawner.sandboxes.runtimes import answered

_FILE: Final = "state/agent-server.json"
_LARGEST: Final = 16 * 1024
_SECONDS: Final = 10.0
_LONGEST_ERROR: Final = 2000


class Told(BaseModel):
    """What the worker has written down."""

    model_config = ConfigDict(extra="ignore")

    kind: Annotated[str, StringConstraints(pattern="^[a-z]{1,32}$")]
    state: ServerState
    starts: Count = 0
    port: Annotated[int, Field(ge=1024, le=65_535)] | None = None
    key: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_-]{32,128}$")] = Field(repr=False)
    error: str | None = None


class Servers:
    """Answers `agent_server`."""

    def __init__(self, reach: Reach, runtimes: Mapping[str, Runtime]) -> None:
        self._reach = reach
        self._runtimes = runtimes

    async def of(self, asked: Asked[AskAgentServer]) -> AgentServerView:
        """How it stands, and where it is. Raises `ContractError`."""
        record = await self._reach.open_record(asked.project, asked.request.sandbox)
        runtime = self._runtimes.get(record.runtime)
        if runtime is None:
            raise ContractError(Code.UNAVAILABLE, f"there is no runtime {record.runtime} here any more")
        try:
            return await _view(runtime, record, asked.request)
        except RuntimeFailedError as error:
            code = Code.REFUSED if error.permanent else Code.UNAVAILABLE
            raise ContractError(code, str(error), field="sandbox") from error


async def _view(runtime: Runtime, record: SandboxRecord, request: AskAgentServer) -> AgentServerView:
    what = f"runtime {runtime.name}"
    document = await answered(runtime.read(record.alias, _FILE, _LARGEST), _SECONDS, what)
    told = read(document, record.sandbox)
    ready = told.state == "ready" and told.port is not None
    found = await answered(runtime.address(record.alias, told.port), _SECONDS, what) if ready and told.port else None
    return AgentServerView(
        sandbox=record.sandbox,
        kind=told.kind,
        state=told.state,
        starts=told.starts,
        url=found.url if found else None,
        key=told.key if request.with_key else None,
        headers=dict(found.headers) or None if found and request.with_key else None,
        error=None if told.error is None else refusals.plain(told.error[:_LONGEST_ERROR]),
    )


def read(document: bytes | None, sandbox: str) -> Told:
    """What the file says. Pure. Raises `ContractError` where there is none, or one that can't be the worker's."""
    if document is None:
        raise refusals.error_of(
            Problem(
                code=Code.NOT_FOUND,
                message=f"sandbox {sandbox} has no agent server, or has not begun to start it",
                field="sandbox",
                remedy="`sandherd sandboxes create --agent-server` makes one that has; it says agent.server_ready",
            )
        )
    try:
        return Told.model_validate_json(document, strict=True)
    except ValidationError as error:
        message = f"what sandbox {sandbox} says of its agent server can't be read"
        raise ContractError(Code.UNAVAILABLE, message, field="sandbox", remedy="ask again") from error
