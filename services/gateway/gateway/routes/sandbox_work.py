"""Routes for the lifecycle of a sandbox, and for commands in it."""

import base64
import binascii
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import ConfigDict

from gateway.request_models import body_of, part_of
from gateway.routes.route_replies import Accepted, Name, accepted_response
from gateway.sessions import Session, WorkSession
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.commands import (
    ExtendSandbox,
    PauseSandbox,
    ResumeSandbox,
    SandboxSpec,
)
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import (
    Exec,
    ExecInput,
    ExecKill,
    ExecState,
    ExecStatus,
    InputAccepted,
    SandboxView,
)
from sandherd.contracts.states import SANDBOX_ENDED

router: Final = APIRouter(tags=["sandboxes"])
_FIELDS_OF_PATH: Final = frozenset({"sandbox"})
_FIELDS_OF_PATH_AND_NAME: Final = frozenset({"sandbox", "exec"})
ExecBody: Any = body_of(Exec, "ExecBody", without=_FIELDS_OF_PATH_AND_NAME)
ExecQuery: Any = part_of(ExecStatus, "ExecQuery", without=_FIELDS_OF_PATH_AND_NAME)
ExecKillBody: Any = body_of(ExecKill, "ExecKillBody", without=_FIELDS_OF_PATH_AND_NAME)
ExecInputBody: Any = body_of(ExecInput, "ExecInputBody", without=_FIELDS_OF_PATH_AND_NAME)
PauseBody: Any = body_of(PauseSandbox, "PauseBody", without=_FIELDS_OF_PATH)
ExtendBody: Any = body_of(ExtendSandbox, "ExtendBody", without=_FIELDS_OF_PATH)
_TIMEOUT_SECONDS: Final = 15.0


class SandboxBody(SandboxSpec):
    """A sandbox without a task. It is the contract `SandboxSpec`."""

    model_config = ConfigDict(defer_build=False)  # as for `TaskBody`


class LogText(Model):
    """The end of the log that a runtime stores of a sandbox. It is text from a sandbox."""

    text: str
    truncated: bool
    """Whether the beginning of the requested lines is missing."""


# --- lifecycle ---------------------------------------------------------------------------------------------------


@router.post("/sandboxes", status_code=202, response_model=Accepted)
async def create_sandbox(session: WorkSession, spec: SandboxBody, name: SafeName | None = None) -> JSONResponse:
    """Create a sandbox without a task. Requests with the same name, or `Idempotency-Key`, create one sandbox."""
    sandbox = name or session.name("sbx")
    await session.herd.create(spec, sandbox=sandbox, by=session.caller.name, wait=False)
    return accepted_response(sandbox, f"/sandboxes/{sandbox}")


@router.post("/sandboxes/{sandbox}/pause", status_code=202, response_model=Accepted)
async def pause_sandbox(session: WorkSession, sandbox: Name, body: PauseBody | None = None) -> JSONResponse:
    """Freeze a sandbox."""
    reason = "" if body is None else body.reason
    return await _publish_command(
        session, validated(PauseSandbox, sandbox=sandbox, reason=_reason_with_caller(session, reason))
    )


@router.post("/sandboxes/{sandbox}/resume", status_code=202, response_model=Accepted)
async def resume_sandbox(session: WorkSession, sandbox: Name) -> JSONResponse:
    """Resume a paused sandbox."""
    return await _publish_command(session, validated(ResumeSandbox, sandbox=sandbox))


@router.post("/sandboxes/{sandbox}/extend", status_code=202, response_model=Accepted)
async def extend_sandbox(session: WorkSession, sandbox: Name, body: ExtendBody) -> JSONResponse:
    """Set the expiry of a sandbox to `seconds` from now; a later expiry is not changed."""
    return await _publish_command(session, validated(ExtendSandbox, sandbox=sandbox, **body.model_dump()))


@router.get("/sandboxes/{sandbox}/log")
async def runtime_log(
    session: WorkSession, sandbox: Name, lines: Annotated[int, Query(ge=1, le=1000)] = 200
) -> LogText:
    """The last lines of the log that its runtime stores of a sandbox."""
    text, truncated = await session.herd.runtime_logs(sandbox, lines=lines)
    return LogText(text=text, truncated=truncated)


# --- commands ----------------------------------------------------------------------------------------------------


@router.post("/sandboxes/{sandbox}/exec", status_code=202, response_model=ExecState)
async def start_command(session: WorkSession, sandbox: Name, body: ExecBody) -> JSONResponse:
    """Start a command. The response has its state and first output; `Location` is the URL of its later state."""
    name = session.name("exc")
    fields = _decode_field(body.model_dump(exclude_unset=True), "stdin")
    state = await session.herd.connection.request(
        validated(Exec, sandbox=sandbox, exec=name, **fields), timeout=_TIMEOUT_SECONDS
    )
    location = f"/api/v1/sandboxes/{sandbox}/exec/{name}"
    return JSONResponse(state.model_dump(mode="json"), 202, {"Location": location})


@router.get("/sandboxes/{sandbox}/exec/{command}")
async def command_state(
    session: WorkSession, sandbox: Name, command: Name, query: Annotated[ExecQuery, Query()]
) -> ExecState:
    """The state of a command, with its output from `offset` on. `wait_seconds` is how long to wait for more."""
    request = validated(ExecStatus, sandbox=sandbox, exec=command, **query.model_dump(exclude_unset=True))
    return await session.herd.connection.request(request, timeout=_TIMEOUT_SECONDS)


@router.post("/sandboxes/{sandbox}/exec/{command}/kill")
async def kill_command(session: WorkSession, sandbox: Name, command: Name, body: ExecKillBody) -> ExecState:
    """Send a signal to a command and all processes that it has started."""
    request = validated(ExecKill, sandbox=sandbox, exec=command, **body.model_dump(exclude_unset=True))
    return await session.herd.connection.request(request, timeout=_TIMEOUT_SECONDS)


@router.post("/sandboxes/{sandbox}/exec/{command}/input")
async def command_input(session: WorkSession, sandbox: Name, command: Name, body: ExecInputBody) -> InputAccepted:
    """Write to the terminal of a command, or change its size: at most 3072 bytes, as 4096 characters of base64url."""
    fields = _decode_field(body.model_dump(exclude_unset=True), "data")
    request = validated(ExecInput, sandbox=sandbox, exec=command, **fields)
    return await session.herd.connection.request(request, timeout=_TIMEOUT_SECONDS)


def _decode_field(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields, with the field `name` decoded from base64url. Raises `HerdError`.

    Contracts decode bytes only if they are read from JSON.
    """
    if fields.get(name) is None:
        return fields
    try:
        return fields | {name: base64.b64decode(fields[name], altchars=b"-_", validate=True)}
    except binascii.Error:
        raise HerdError.of(
            Code.INVALID_FIELD, f"{name}: it is not base64url", field=name, remedy="encode it, with padding"
        ) from None


async def _publish_command(session: Session, command: Any) -> JSONResponse:
    """Publish a command about a sandbox that has not ended. Raises `HerdError`."""
    sandbox = command.sandbox
    view: SandboxView = await session.herd.sandbox(sandbox)
    if view.state in SANDBOX_ENDED:
        raise HerdError.of(
            Code.CONFLICT, f"{sandbox} is {view.state}", field="sandbox", remedy="name one that has not ended"
        )
    await session.herd.connection.command(command, sandbox)
    return accepted_response(sandbox, f"/sandboxes/{sandbox}")


def _reason_with_caller(session: Session, reason: str) -> str:
    """A reason with the name of the caller, for which the command has no field."""
    return f"{session.caller.name}: {reason}" if reason else session.caller.name
