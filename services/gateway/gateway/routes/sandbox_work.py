"""What a user does with a sandbox: its lifecycle, commands and files in it, and the monitor's rules about it."""

import base64
import binascii
import tempfile
from contextlib import ExitStack
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict

from gateway.api_server import CONNECTION
from gateway.bodies import part_of
from gateway.downloads import SHARE, FileResponse
from gateway.routes.replies import FILE, Accepted, Name, accepted
from gateway.sessions import Reader, Session, Worker
from sandherd.client.errors import HerdError, made
from sandherd.contracts.commands import (
    ExtendSandbox,
    MuteRule,
    PauseSandbox,
    ResumeSandbox,
    SandboxSpec,
    UnmuteRule,
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
    FileList,
    FileWritten,
    InputAccepted,
    ListFiles,
    SandboxView,
)
from sandherd.contracts.requests.access import TreePath
from sandherd.contracts.states import SANDBOX_ENDED

router: Final = APIRouter(tags=["sandboxes"])
_NAMED: Final = frozenset({"sandbox"})
_COMMAND: Final = frozenset({"sandbox", "exec"})
FileQuery: Any = part_of(ListFiles, "FileQuery", without=_NAMED)
ExecBody: Any = part_of(Exec, "ExecBody", without=_COMMAND)
ExecQuery: Any = part_of(ExecStatus, "ExecQuery", without=_COMMAND)
ExecKillBody: Any = part_of(ExecKill, "ExecKillBody", without=_COMMAND)
ExecInputBody: Any = part_of(ExecInput, "ExecInputBody", without=_COMMAND)
PauseBody: Any = part_of(PauseSandbox, "PauseBody", without=_NAMED)
ExtendBody: Any = part_of(ExtendSandbox, "ExtendBody", without=_NAMED)
MuteBody: Any = part_of(MuteRule, "MuteBody", without=frozenset({"sandbox", "rule", "muted_by"}))
Path = Annotated[TreePath, Query()]
"""A path in the work tree of a sandbox, in the query: paths have slashes and dots."""
_SECONDS: Final = 15.0
_DOWNLOAD_SECONDS: Final = 600.0
_IN_MEMORY: Final = 1024 * 1024
_FOLDER: Final = SHARE // 2
_BYTES: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class SandboxBody(SandboxSpec):
    """A sandbox without a task. It is the contract `SandboxSpec`."""

    model_config = ConfigDict(defer_build=False)  # as for `TaskBody`


class LogText(Model):
    """The end of the log that a runtime keeps of a sandbox. It is text from a sandbox."""

    text: str
    truncated: bool
    """Whether their beginning is missing."""


# --- lifecycle ---------------------------------------------------------------------------------------------------


@router.post("/sandboxes", status_code=202, response_model=Accepted)
async def create_sandbox(session: Worker, spec: SandboxBody, name: SafeName | None = None) -> JSONResponse:
    """Create a sandbox without a task. Repeated under the same name, or with the same key, it is one sandbox."""
    sandbox = name or session.name("sbx")
    await session.herd.create(spec, sandbox=sandbox, by=session.caller.name, wait=False)
    return accepted(sandbox, f"/sandboxes/{sandbox}")


@router.post("/sandboxes/{sandbox}/pause", status_code=202, response_model=Accepted)
async def pause_sandbox(session: Worker, sandbox: Name, body: PauseBody | None = None) -> JSONResponse:
    """Freeze a sandbox."""
    reason = "" if body is None else body.reason
    return await _commanded(session, made(PauseSandbox, sandbox=sandbox, reason=_signed(session, reason)))


@router.post("/sandboxes/{sandbox}/resume", status_code=202, response_model=Accepted)
async def resume_sandbox(session: Worker, sandbox: Name) -> JSONResponse:
    """Resume a paused sandbox."""
    return await _commanded(session, made(ResumeSandbox, sandbox=sandbox))


@router.post("/sandboxes/{sandbox}/extend", status_code=202, response_model=Accepted)
async def extend_sandbox(session: Worker, sandbox: Name, body: ExtendBody) -> JSONResponse:
    """Set the expiry of a sandbox to so many seconds from now; a later expiry is not changed."""
    return await _commanded(session, made(ExtendSandbox, sandbox=sandbox, **body.model_dump()))


@router.post("/sandboxes/{sandbox}/rules/{rule}/mute", status_code=202, response_model=Accepted, tags=["monitor"])
async def mute_rule(session: Worker, sandbox: Name, rule: Name, body: MuteBody | None = None) -> JSONResponse:
    """Mute a guardian rule for a sandbox, for some seconds or until it is unmuted."""
    await _check_rule(session, sandbox, rule)
    seconds = None if body is None else body.seconds
    command = made(MuteRule, sandbox=sandbox, rule=rule, seconds=seconds, muted_by=session.caller.name)
    return await _commanded(session, command, "/monitor")


@router.post("/sandboxes/{sandbox}/rules/{rule}/unmute", status_code=202, response_model=Accepted, tags=["monitor"])
async def unmute_rule(session: Worker, sandbox: Name, rule: Name) -> JSONResponse:
    """Evaluate a muted rule again."""
    await _check_rule(session, sandbox, rule)
    command = made(UnmuteRule, sandbox=sandbox, rule=rule, unmuted_by=session.caller.name)
    return await _commanded(session, command, "/monitor")


@router.get("/sandboxes/{sandbox}/log")
async def runtime_log(session: Worker, sandbox: Name, lines: Annotated[int, Query(ge=1, le=1000)] = 200) -> LogText:
    """The last lines of the log that its runtime keeps of a sandbox."""
    text, truncated = await session.herd.runtime_logs(sandbox, lines=lines)
    return LogText(text=text, truncated=truncated)


# --- commands ----------------------------------------------------------------------------------------------------


@router.post("/sandboxes/{sandbox}/exec", status_code=202, response_model=ExecState)
async def start_command(session: Worker, sandbox: Name, body: ExecBody) -> JSONResponse:
    """Start a command. The response has its first output if it is short; `Location` has its state until its end."""
    name = session.name("exc")
    fields = _decoded(body.model_dump(exclude_unset=True), "stdin")
    found = await session.herd.connection.request(made(Exec, sandbox=sandbox, exec=name, **fields), timeout=_SECONDS)
    location = f"/api/v1/sandboxes/{sandbox}/exec/{name}"
    return JSONResponse(found.model_dump(mode="json"), 202, {"Location": location})


@router.get("/sandboxes/{sandbox}/exec/{command}")
async def command_state(
    session: Worker, sandbox: Name, command: Name, which: Annotated[ExecQuery, Query()]
) -> ExecState:
    """The state of a command, with its output from `offset` on; `wait_seconds` waits for more."""
    request = made(ExecStatus, sandbox=sandbox, exec=command, **which.model_dump(exclude_unset=True))
    return await session.herd.connection.request(request, timeout=_SECONDS)


@router.post("/sandboxes/{sandbox}/exec/{command}/kill")
async def kill_command(session: Worker, sandbox: Name, command: Name, body: ExecKillBody) -> ExecState:
    """Send a signal to a command and all processes that it has started."""
    request = made(ExecKill, sandbox=sandbox, exec=command, **body.model_dump(exclude_unset=True))
    return await session.herd.connection.request(request, timeout=_SECONDS)


@router.post("/sandboxes/{sandbox}/exec/{command}/input")
async def command_input(session: Worker, sandbox: Name, command: Name, body: ExecInputBody) -> InputAccepted:
    """Write to the terminal of a command, or change its size: at most 3072 bytes, as 4096 characters of base64url."""
    fields = _decoded(body.model_dump(exclude_unset=True), "data")
    request = made(ExecInput, sandbox=sandbox, exec=command, **fields)
    return await session.herd.connection.request(request, timeout=_SECONDS)


# --- files -------------------------------------------------------------------------------------------------------


@router.get("/sandboxes/{sandbox}/files")
async def list_files(session: Reader, sandbox: Name, which: Annotated[FileQuery, Query()]) -> FileList:
    """The entries of a folder of its work tree; for a file, the file."""
    request = made(ListFiles, sandbox=sandbox, **which.model_dump(exclude_unset=True))
    return await session.herd.connection.request(request, timeout=_SECONDS)


@router.get("/sandboxes/{sandbox}/files/content", response_class=Response, responses=FILE)
async def download_file(session: Reader, request: Request, sandbox: Name, path: Path) -> Response:
    """The bytes of a file, or of a folder as a tar archive. Never show them as HTML: a sandbox wrote them."""
    limit = await _size_of(session, sandbox, path)
    with ExitStack() as stack:
        stack.enter_context(session.backend.downloads.reserved(session.caller.project, limit))
        request.scope[CONNECTION].extend(_DOWNLOAD_SECONDS)
        file = stack.enter_context(LimitedFile(limit))
        found = await session.herd.download(sandbox, path, file)
        headers = {
            "Content-Disposition": f'attachment; filename="{"content.tar" if found.kind == "folder" else "content"}"',
            "Content-Length": str(found.size),
        }
        return FileResponse(file, stack.pop_all(), headers)


@router.put("/sandboxes/{sandbox}/files/content", openapi_extra=_BYTES)
async def upload_file(
    session: Worker,
    request: Request,
    sandbox: Name,
    path: Path,
    mode: Annotated[str, Query(pattern="^0?[0-7]{3}$")] = "644",
) -> FileWritten:
    """Write the body as a file of its work tree, atomically. `mode` is octal. Larger ones: `sandherd cp`."""
    return await session.herd.write(sandbox, await request.body(), path, mode=int(mode, 8))


class LimitedFile(tempfile.SpooledTemporaryFile[bytes]):
    """A temporary file that refuses more than `limit` bytes: a sandbox says how large its files are."""

    def __init__(self, limit: int) -> None:
        super().__init__(max_size=_IN_MEMORY)
        self._limit = limit

    def write(self, s: Any) -> int:
        """Write it. Raises `HerdError` (`too_large`)."""
        if self.tell() + len(s) > self._limit:
            text = f"it has more than {self._limit} bytes"
            raise HerdError.of(Code.TOO_LARGE, text, field="path", remedy="get it with `sandherd cp`")
        return super().write(s)


def _decoded(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields with the bytes of one: only contracts that are read from JSON decode them. Raises `HerdError`."""
    if fields.get(name) is None:
        return fields
    try:
        return fields | {name: base64.b64decode(fields[name], altchars=b"-_", validate=True)}
    except binascii.Error:
        raise HerdError.of(
            Code.INVALID_FIELD, f"{name}: it is not base64url", field=name, remedy="encode it, with padding"
        ) from None


async def _size_of(session: Session, sandbox: str, path: str) -> int:
    """The size of a file; of a folder, the maximum of its archive. Raises `HerdError` if there is none."""
    found = await session.herd.files(sandbox, path, limit=1)
    entry = next((one for one in found.entries if one.path.strip("./") == path.strip("./")), None)
    return entry.size if entry is not None and entry.kind == "file" else _FOLDER


async def _commanded(session: Session, command: Any, below: str = "") -> JSONResponse:
    """Publish a command about a sandbox that has not ended. Raises `HerdError`."""
    sandbox = command.sandbox
    view: SandboxView = await session.herd.sandbox(sandbox)
    if view.state in SANDBOX_ENDED:
        raise HerdError.of(
            Code.CONFLICT, f"{sandbox} is {view.state}", field="sandbox", remedy="name one that has not ended"
        )
    await session.herd.connection.command(command, sandbox)
    return accepted(sandbox, f"/sandboxes/{sandbox}{below}")


async def _check_rule(session: Session, sandbox: str, rule: str) -> None:
    view = await session.herd.monitored(sandbox)
    if rule not in {one.rule for one in view.rules if one.kind == "guardian"}:
        remedy = f"see /api/v1/sandboxes/{sandbox}/monitor"
        raise HerdError.of(Code.NOT_FOUND, f"there is no guardian rule {rule}", field="rule", remedy=remedy)


def _signed(session: Session, reason: str) -> str:
    """A reason with who requests it, as the command itself has no field for that."""
    return f"{session.caller.name}: {reason}" if reason else session.caller.name
