"""What the spawner asks of a sandbox's worker, on that sandbox's subject, and what a worker asks of the spawner."""

from typing import ClassVar

from pydantic import BaseModel

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count
from sandherd.contracts.requests.access import (
    ArtifactPiece,
    DownloadFields,
    ExecFields,
    ExecKillFields,
    ExecState,
    ExecStatusFields,
    FileList,
    FileRead,
    FileWritten,
    ListFilesFields,
    PieceFields,
    UploadFields,
)
from sandherd.contracts.requests.base import Request
from sandherd.contracts.states import SandboxState


class Fetch(PieceFields, Request[ArtifactPiece]):
    """A worker's question for a piece of an artifact that its sandbox was given. `owner` is whose artifact it is."""

    Answer: ClassVar[type[BaseModel]] = ArtifactPiece
    type: ClassVar[str] = "spawner.fetch"
    owner: SafeName
    """The sandbox under whose subject it lies: the asker's own, or that of an earlier attempt offered to it."""


class Peer(Model):
    """Another agent of the same project, as far as its peers may know it."""

    sandbox: SafeName
    task: SafeName
    state: SandboxState
    text: str = ""
    """The beginning of its task."""


class PeerList(Model):
    """Agents whose sandboxes have not ended, newest first."""

    peers: list[Peer]
    more: bool = False
    """Whether there are others beside these."""


class AskPeers(Request[PeerList]):
    """A worker's question for the other agents of its project. The subject says who asks, and of which project."""

    Answer: ClassVar[type[BaseModel]] = PeerList
    type: ClassVar[str] = "spawner.peers"
    sandbox: SafeName | None = None
    """Only this one, if it is among them."""


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


class WorkerListFiles(ListFilesFields, Request[FileList]):
    """`ListFiles`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileList
    type: ClassVar[str] = "worker.list_files"


class WorkerUpload(UploadFields, Request[FileWritten]):
    """`Upload`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileWritten
    type: ClassVar[str] = "worker.upload"
    max_bytes: Count
    """What may be written, unpacked. The herd's setting: a sandbox's settings are its own."""


class WorkerDownload(DownloadFields, Request[FileRead]):
    """`Download`, on the subject of its sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileRead
    type: ClassVar[str] = "worker.download"
    max_bytes: Count
    """The largest file or archive that is wanted; a larger one is `too_large`."""
