"""Commands and files in a sandbox: clients' requests to the spawner. The fields are those of `requests.access`."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, StringConstraints

from sandherd.contracts.model import Count
from sandherd.contracts.names import UPLOAD_PREFIX, SafeName
from sandherd.contracts.requests.access import (
    ArtifactPiece,
    Binary,
    ChunkFields,
    ChunkStored,
    DownloadFields,
    ExecFields,
    ExecKillFields,
    ExecState,
    ExecStatusFields,
    FileList,
    FileRead,
    FileWritten,
    ListFilesFields,
    Piece,
    UploadFields,
)
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.ports import PortData, PortReadFields, PortWriteFields, PortWritten
from sandherd.contracts.requests.terminal import ExecInputFields, InputAccepted


class SandboxFields(Binary):
    """The sandbox, which a client's request names in addition to the other fields."""

    sandbox: SafeName


class Exec(ExecFields, SandboxFields, Request[ExecState]):
    """Run a command in a sandbox. `ExecStatus` returns its output and its end."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "spawner.exec"


class ExecStatus(ExecStatusFields, SandboxFields, Request[ExecState]):
    """Return the state and the next output of a command."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "spawner.exec_status"


class ExecKill(ExecKillFields, SandboxFields, Request[ExecState]):
    """Send a signal to a command."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "spawner.exec_kill"


class ExecInput(ExecInputFields, SandboxFields, Request[InputAccepted]):
    """Write to the terminal of a command, or change its size."""

    Answer: ClassVar[type[BaseModel]] = InputAccepted
    type: ClassVar[str] = "spawner.exec_input"


class PortWrite(PortWriteFields, SandboxFields, Request[PortWritten]):
    """Open a connection to a port on a sandbox's loopback, or write to it."""

    Answer: ClassVar[type[BaseModel]] = PortWritten
    type: ClassVar[str] = "spawner.port_write"


class PortRead(PortReadFields, SandboxFields, Request[PortData]):
    """Return the next bytes of a connection to a port of a sandbox."""

    Answer: ClassVar[type[BaseModel]] = PortData
    type: ClassVar[str] = "spawner.port_read"


class ListFiles(ListFilesFields, SandboxFields, Request[FileList]):
    """List a folder of a sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileList
    type: ClassVar[str] = "spawner.list_files"


class UploadChunk(SandboxFields, Request[ChunkStored]):
    """Store a chunk of a large file for an hour, so that `Upload` can refer to it.

    A chunk that is sent twice is stored once. With a task's name as `sandbox`, it is a chunk of the task's `work`,
    which is stored as long as the task's record.
    """

    Answer: ClassVar[type[BaseModel]] = ChunkStored
    type: ClassVar[str] = "spawner.upload_chunk"
    artifact: Annotated[SafeName, StringConstraints(pattern=f"^{UPLOAD_PREFIX}")]
    index: Count
    data: Piece


class Upload(UploadFields, SandboxFields, Request[FileWritten]):
    """Upload a file or folder to a sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileWritten
    type: ClassVar[str] = "spawner.upload"


class Download(DownloadFields, SandboxFields, Request[FileRead]):
    """Download a file or folder from a sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileRead
    type: ClassVar[str] = "spawner.download"


class DownloadChunk(ChunkFields, SandboxFields, Request[ArtifactPiece]):
    """Return the next chunk of what `Download` has stored, or of any artifact of that sandbox or task."""

    Answer: ClassVar[type[BaseModel]] = ArtifactPiece
    type: ClassVar[str] = "spawner.download_chunk"
