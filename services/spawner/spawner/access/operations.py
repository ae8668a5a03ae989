"""Checks users' requests about commands and files, and forwards them to the sandbox's worker."""

from sandherd.contracts.chunks import chunk_count
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.requests import (
    Download,
    Exec,
    ExecInput,
    ExecKill,
    ExecState,
    ExecStatus,
    FileList,
    FileRead,
    FileWritten,
    InputAccepted,
    ListFiles,
    Upload,
    WorkerDownload,
    WorkerExec,
    WorkerExecInput,
    WorkerExecKill,
    WorkerExecStatus,
    WorkerListFiles,
    WorkerUpload,
)
from sandherd.contracts.subjects import ARTIFACT
from sandherd.service.service import IncomingRequest
from sandherd.telemetry.meters import Meters
from spawner.access import refusals
from spawner.access.worker_requests import WorkerRequests, of_worker


class SandboxAccess:
    """Handles requests about commands and files. `cap` is the maximum bytes of a file.

    A transfer may take longer than one request: the worker continues, and the client repeats the request with the same
    name.
    """

    def __init__(self, workers: WorkerRequests, cap: int, meters: Meters) -> None:
        self._workers = workers
        self._cap = cap
        self._meters = meters

    async def exec(self, incoming: IncomingRequest[Exec]) -> ExecState:
        """Run a command."""
        request = incoming.request
        outcome = "refused"
        try:
            worker_request = of_worker(request, WorkerExec)
            state = await self._workers.send_request(
                incoming.project, request.sandbox, worker_request, request.wait_seconds
            )
            outcome = "started"
        except ContractError as error:
            outcome = "unanswered" if error.problem.code is Code.UNAVAILABLE else outcome
            raise
        finally:
            self._meters.count("sandherd_execs_total", outcome=outcome)
        return state

    async def exec_status(self, incoming: IncomingRequest[ExecStatus]) -> ExecState:
        """The state of a command."""
        return await self._workers.forward(incoming, WorkerExecStatus, incoming.request.wait_seconds)

    async def exec_kill(self, incoming: IncomingRequest[ExecKill]) -> ExecState:
        """End a command."""
        return await self._workers.forward(incoming, WorkerExecKill)

    async def exec_input(self, incoming: IncomingRequest[ExecInput]) -> InputAccepted:
        """Write to a command's terminal."""
        return await self._workers.forward(incoming, WorkerExecInput)

    async def list_files(self, incoming: IncomingRequest[ListFiles]) -> FileList:
        """The contents of a folder."""
        return await self._workers.forward(incoming, WorkerListFiles)

    async def upload(self, incoming: IncomingRequest[Upload]) -> FileWritten:
        """Copy a file or folder into the sandbox. Raises `ContractError` (`too_large` above the cap)."""
        request = incoming.request
        if request.artifact is not None:
            _check_artifact(request.artifact, incoming.project, request.sandbox, self._cap)
        worker_request = of_worker(request, WorkerUpload, max_bytes=self._cap)
        written = await self._workers.send_request(
            incoming.project, request.sandbox, worker_request, request.wait_seconds
        )
        if written.done and request.data:
            self._meters.count("sandherd_uploaded_bytes_total", len(request.data))
        return written

    async def download(self, incoming: IncomingRequest[Download]) -> FileRead:
        """Copy a file or folder out of the sandbox. Its worker refuses anything above the cap."""
        request = incoming.request
        worker_request = of_worker(request, WorkerDownload, max_bytes=self._cap)
        read = await self._workers.send_request(incoming.project, request.sandbox, worker_request, request.wait_seconds)
        if read.data:
            self._meters.count("sandherd_downloaded_bytes_total", len(read.data))
        return read


def _check_artifact(artifact: ArtifactRef, project: str, sandbox: str, cap: int) -> None:
    """Raise `ContractError` if the artifact is too large, belongs to another sandbox, or its reference is invalid."""
    refusals.refuse(refusals.size_refusal(artifact.size, cap, "artifact"))
    try:
        expected_subject = ARTIFACT.fill(project=project, sandbox=sandbox, artifact=artifact.artifact)
    except UnsafeNameError as error:
        raise _invalid(str(error)) from None
    if artifact.subject != expected_subject:
        raise _invalid(f"artifact: its subject must be {expected_subject}")
    if artifact.chunks != (expected := chunk_count(artifact.size)):
        raise _invalid(f"artifact: {artifact.size} bytes are {expected} chunks, not {artifact.chunks}")


def _invalid(message: str) -> ContractError:
    return ContractError(Code.INVALID_FIELD, message, field="artifact")
