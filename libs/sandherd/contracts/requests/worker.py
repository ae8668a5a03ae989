"""Requests of the spawner to a sandbox's worker, on that sandbox's subject, and requests of a worker to the spawner."""

from typing import ClassVar

from pydantic import BaseModel

from sandherd.contracts.model import Count, Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.access import (
    ArtifactPiece,
    ChunkFields,
    DownloadFields,
    ExecFields,
    ExecKillFields,
    ExecState,
    ExecStatusFields,
    FileList,
    FileRead,
    FileWritten,
    ListFilesFields,
    UploadFields,
)
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.ports import PortData, PortReadFields, PortWriteFields, PortWritten
from sandherd.contracts.requests.terminal import ExecInputFields, InputAccepted
from sandherd.contracts.states import SandboxState


class Fetch(ChunkFields, Request[ArtifactPiece]):
    """Return a chunk of an artifact that a worker's sandbox was given. `owner` is the sandbox of the artifact."""

    Answer: ClassVar[type[BaseModel]] = ArtifactPiece
    type: ClassVar[str] = "spawner.fetch"
    owner: SafeName
    """The sandbox under whose subject the artifact is stored: the requester's, or that of an earlier attempt offered to
    it."""


class Peer(Model):
    """Another agent of the same project, with what other agents may know about it."""

    sandbox: SafeName
    task: SafeName
    state: SandboxState
    text: str = ""
    """The beginning of the task's text."""


class PeerList(Model):
    """Agents whose sandboxes have not ended, newest first."""

    peers: list[Peer]
    more: bool = False
    """Whether there are more agents than the listed ones."""


class ListPeers(Request[PeerList]):
    """List the other agents of a worker's project. The subject identifies the worker and its project."""

    Answer: ClassVar[type[BaseModel]] = PeerList
    type: ClassVar[str] = "spawner.peers"
    sandbox: SafeName | None = None
    """Only the agent in this sandbox, if there is one."""


class WorkerExec(ExecFields, Request[ExecState]):
    """`Exec`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "worker.exec"


class WorkerExecStatus(ExecStatusFields, Request[ExecState]):
    """`ExecStatus`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "worker.exec_status"


class WorkerExecKill(ExecKillFields, Request[ExecState]):
    """`ExecKill`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "worker.exec_kill"


class WorkerExecInput(ExecInputFields, Request[InputAccepted]):
    """`ExecInput`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = InputAccepted
    type: ClassVar[str] = "worker.exec_input"


class WorkerPortWrite(PortWriteFields, Request[PortWritten]):
    """`PortWrite`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = PortWritten
    type: ClassVar[str] = "worker.port_write"


class WorkerPortRead(PortReadFields, Request[PortData]):
    """`PortRead`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = PortData
    type: ClassVar[str] = "worker.port_read"


class WorkerListFiles(ListFilesFields, Request[FileList]):
    """`ListFiles`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileList
    type: ClassVar[str] = "worker.list_files"


class WorkerUpload(UploadFields, Request[FileWritten]):
    """`Upload`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileWritten
    type: ClassVar[str] = "worker.upload"
    max_bytes: Count
    """Maximum number of bytes to write, after unpacking. The request has it because a sandbox does not have the herd's
    settings."""


class WorkerDownload(DownloadFields, Request[FileRead]):
    """`Download`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileRead
    type: ClassVar[str] = "worker.download"
    max_bytes: Count
    """Maximum size of the file or archive; a larger one is refused with `too_large`."""
