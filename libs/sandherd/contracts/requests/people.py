"""Commands and files in a sandbox: what people ask of the spawner. The fields are those of `requests.access`."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, StringConstraints

from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count
from sandherd.contracts.requests.access import (
    ArtifactPiece,
    Binary,
    DownloadFields,
    ExecFields,
    ExecKillFields,
    ExecState,
    ExecStatusFields,
    FileList,
    FileRead,
    FileWritten,
    Held,
    ListFilesFields,
    Piece,
    PieceFields,
    UploadFields,
)
from sandherd.contracts.requests.base import Request


class OfSandbox(Binary):
    """What a question of people has beside its fields."""

    sandbox: SafeName


class Exec(ExecFields, OfSandbox, Request[ExecState]):
    """Run a command in a sandbox. Output and end are asked for with `ExecStatus`."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "spawner.exec"


class ExecStatus(ExecStatusFields, OfSandbox, Request[ExecState]):
    """How far a command is."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "spawner.exec_status"


class ExecKill(ExecKillFields, OfSandbox, Request[ExecState]):
    """End a command."""

    Answer: ClassVar[type[BaseModel]] = ExecState
    type: ClassVar[str] = "spawner.exec_kill"


class ListFiles(ListFilesFields, OfSandbox, Request[FileList]):
    """What is in a folder of a sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileList
    type: ClassVar[str] = "spawner.list_files"


class UploadChunk(OfSandbox, Request[Held]):
    """A piece of a large file: held for an hour, until `Upload` names it. The same piece twice is one."""

    Answer: ClassVar[type[BaseModel]] = Held
    type: ClassVar[str] = "spawner.upload_chunk"
    artifact: Annotated[SafeName, StringConstraints(pattern="^upl-")]
    index: Count
    data: Piece


class Upload(UploadFields, OfSandbox, Request[FileWritten]):
    """Put a file or folder into a sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileWritten
    type: ClassVar[str] = "spawner.upload"


class Download(DownloadFields, OfSandbox, Request[FileRead]):
    """Take a file or folder out of a sandbox."""

    Answer: ClassVar[type[BaseModel]] = FileRead
    type: ClassVar[str] = "spawner.download"


class DownloadChunk(PieceFields, OfSandbox, Request[ArtifactPiece]):
    """The next piece of what `Download` has put aside, or of any artifact of that sandbox."""

    Answer: ClassVar[type[BaseModel]] = ArtifactPiece
    type: ClassVar[str] = "spawner.download_chunk"
