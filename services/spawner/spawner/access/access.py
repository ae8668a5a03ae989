"""What people ask to be done in a sandbox: checked, handed on to its worker, and the answer handed back."""

from sandherd.bus.service import Asked
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.requests import (
    INLINE_BYTES,
    Download,
    Exec,
    ExecKill,
    ExecState,
    ExecStatus,
    FileList,
    FileRead,
    FileWritten,
    ListFiles,
    Upload,
    WorkerDownload,
    WorkerExec,
    WorkerExecKill,
    WorkerExecStatus,
    WorkerListFiles,
    WorkerUpload,
)
from sandherd.contracts.subjects import ARTIFACT
from sandherd.telemetry.meters import Meters
from spawner.access import refusals
from spawner.access.reaching import Reach, of_worker


class Access:
    """Answers `exec`, `exec_status`, `exec_kill`, `list_files`, `upload` and `download`. `cap` is in bytes.

    A transfer may take longer than one answer: the worker goes on by itself, and is asked again under the same name.
    """

    def __init__(self, reach: Reach, cap: int, meters: Meters) -> None:
        self._reach = reach
        self._cap = cap
        self._meters = meters

    async def exec(self, asked: Asked[Exec]) -> ExecState:
        """Run a command."""
        request = asked.request
        outcome = "refused"
        try:
            question = of_worker(request, WorkerExec)
            state = await self._reach.ask(asked.project, request.sandbox, question, request.wait_seconds)
            outcome = "started"
        except ContractError as error:
            outcome = "unanswered" if error.problem.code is Code.UNAVAILABLE else outcome
            raise
        finally:
            self._meters.count("sandherd_execs_total", outcome=outcome)
        return state

    async def exec_status(self, asked: Asked[ExecStatus]) -> ExecState:
        """How far a command is."""
        request = asked.request
        question = of_worker(request, WorkerExecStatus)
        return await self._reach.ask(asked.project, request.sandbox, question, request.wait_seconds)

    async def exec_kill(self, asked: Asked[ExecKill]) -> ExecState:
        """End a command."""
        return await self._reach.ask(asked.project, asked.request.sandbox, of_worker(asked.request, WorkerExecKill))

    async def list_files(self, asked: Asked[ListFiles]) -> FileList:
        """What is in a folder."""
        return await self._reach.ask(asked.project, asked.request.sandbox, of_worker(asked.request, WorkerListFiles))

    async def upload(self, asked: Asked[Upload]) -> FileWritten:
        """Put a file or a folder into the sandbox. Raises `ContractError` (`too_large` over the cap)."""
        request = asked.request
        if request.artifact is not None:
            _check_artifact(request.artifact, asked.project, request.sandbox, self._cap)
        question = of_worker(request, WorkerUpload, max_bytes=self._cap)
        written = await self._reach.ask(asked.project, request.sandbox, question, request.wait_seconds)
        if written.done and request.data:
            self._meters.count("sandherd_uploaded_bytes_total", len(request.data))
        return written

    async def download(self, asked: Asked[Download]) -> FileRead:
        """Take a file or a folder out of it. Its worker refuses what is over the cap."""
        request = asked.request
        question = of_worker(request, WorkerDownload, max_bytes=self._cap)
        read = await self._reach.ask(asked.project, request.sandbox, question, request.wait_seconds)
        if read.data:
            self._meters.count("sandherd_downloaded_bytes_total", len(read.data))
        return read


def _check_artifact(artifact: ArtifactRef, project: str, sandbox: str, cap: int) -> None:
    """Raise `ContractError` for a reference that is over the cap, to another's, or in itself impossible."""
    refusals.refuse(refusals.size_refusal(artifact.size, cap, "artifact"))
    try:
        own = ARTIFACT.fill(project=project, sandbox=sandbox, artifact=artifact.artifact)
    except UnsafeNameError as error:
        raise _invalid(str(error)) from None
    if artifact.subject != own:
        raise _invalid(f"artifact: its subject is not {own}")
    if artifact.chunks != max(1, -(-artifact.size // INLINE_BYTES)):
        raise _invalid(f"artifact: {artifact.chunks} chunks; {artifact.size} bytes are in pieces of {INLINE_BYTES}")


def _invalid(message: str) -> ContractError:
    return ContractError(Code.INVALID_FIELD, message, field="artifact")
