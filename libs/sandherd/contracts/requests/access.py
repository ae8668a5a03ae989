"""Commands and files in a sandbox: the fields of what people ask of the spawner, and it of the sandbox's worker.

Each question has two classes of the same fields: one names the sandbox (`requests.people`), the other is sent on that
sandbox's subject (`requests.worker`).
Bytes travel as base64url (RFC 4648 §5); what is over `INLINE_BYTES` goes through ARTIFACTS, piece by piece.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.harnesses import Argument, EnvName
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count, Moment, Whole

INLINE_BYTES: Final = 128 * 1024
"""What one request or answer carries of a file or of output; also the size of a piece."""
LONGEST_WAIT: Final = 5.0
"""How long an answer may be held back for something to tell, in seconds."""
DEFAULT_EXEC_SECONDS: Final = 600

TreePath = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
"""A path in the sandbox's work tree, relative to it; `.` is the tree. One that leads out of it is refused."""
Piece = Annotated[bytes, Field(max_length=INLINE_BYTES)]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Mode = Annotated[int, Field(ge=0, le=0o777)]
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT)]
TransferName = Annotated[SafeName, StringConstraints(pattern="^trf-")]
"""One putting or taking, `trf-…`, made by whoever asks: asked again under one name it goes on, and is done once."""


class Binary(Model):
    """Has bytes among its fields: in JSON they are base64url."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class ExecFields(Binary):
    """A command to run. The same `exec` asked twice runs once."""

    exec: SafeName
    """Its name, `exc-…`, made by whoever asks."""
    command: Annotated[list[Argument], Field(min_length=1, max_length=256)]
    cwd: TreePath = "."
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    """Beside the sandbox's own."""
    stdin: Piece | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = DEFAULT_EXEC_SECONDS
    wait_seconds: Wait = LONGEST_WAIT
    """How long the answer may wait for output or the end."""


class ExecStatusFields(Model):
    """The next output of a command, from `offset` on."""

    exec: SafeName
    offset: Count = 0
    wait_seconds: Wait = LONGEST_WAIT


class ExecKillFields(Model):
    """A signal to a command and all that it has started."""

    exec: SafeName
    signal: Literal["TERM", "INT", "KILL"] = "TERM"


class ExecOutput(Binary):
    """A piece of what a command wrote, in order."""

    stream: Literal["stdout", "stderr"]
    data: Piece


class ExecState(Binary):
    """A command as it stands. Ask on from `next_offset` until `complete`."""

    exec: SafeName
    state: Literal["running", "exited", "killed", "timed_out", "failed"]
    """`failed`: it could not be started, see `error`."""
    exit_code: Whole | None = None
    signal: Whole | None = None
    error: str | None = None
    output: list[ExecOutput] = Field(default_factory=list)
    next_offset: Count = 0
    complete: bool = False
    """Whether it has ended and all that is kept of its output was given."""
    dropped_bytes: Count = 0
    """How much it wrote beyond what is kept."""
    started_at: Moment | None = None
    ended_at: Moment | None = None


class ListFilesFields(Model):
    """What is in a folder."""

    path: TreePath = "."
    recursive: bool = False
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000


class FileEntry(Model):
    """One entry of a folder. `path` is relative to the work tree."""

    path: str
    kind: Literal["file", "folder", "symlink", "other"]
    size: Count = 0
    mode: Mode = 0
    modified_at: Moment | None = None


class FileList(Model):
    """Entries, ordered by path."""

    entries: list[FileEntry]
    truncated: bool = False


class UploadFields(Binary):
    """A file for the work tree, or an archive of a folder: its bytes, or where they wait. Written whole or not.

    Asked again under the same `transfer` until `done`.
    """

    transfer: TransferName
    path: TreePath
    data: Piece | None = None
    artifact: ArtifactRef | None = None
    sha256: Digest
    mode: Mode = 0o644
    unpack: bool = False
    """Whether it is a tar archive, to be unpacked as the folder `path`."""
    wait_seconds: Wait = LONGEST_WAIT
    """How long the answer may wait for the end."""

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if (self.data is None) == (self.artifact is None):
            raise ValueError("either data or artifact, and not both")
        if self.artifact is not None and self.artifact.sha256 != self.sha256:
            raise ValueError("sha256 is not the artifact's")
        return self


class FileWritten(Model):
    """What was written, or how far it is."""

    path: str
    size: Count
    sha256: Digest
    files: Count = 1
    done: bool = True
    """Whether it is all there now; else nothing is seen of it yet, and the same is to be asked again."""
    moved: Count = 0
    """How many bytes the sandbox has so far."""


class DownloadFields(Model):
    """A file, or a folder as a tar archive. Asked again under the same `transfer` until `done`."""

    transfer: TransferName
    path: TreePath
    wait_seconds: Wait = LONGEST_WAIT
    """How long the answer may wait for the end."""


class FileRead(Binary):
    """What was read: in `data`, or waiting under `artifact` for an hour. Or how far it is."""

    path: str
    kind: Literal["file", "folder"]
    """Of a folder the bytes are a tar archive."""
    size: Count
    """Of a folder it is known once it is done."""
    sha256: Digest | None = None
    """Known once it is done."""
    mode: Mode = 0o644
    data: Piece | None = None
    artifact: ArtifactRef | None = None
    done: bool = True
    """Whether it is all there; else the same is to be asked again."""
    moved: Count = 0
    """How many bytes the sandbox has given so far."""


class PieceFields(Model):
    """The next piece of an artifact, in the order of their coming. `not_found` when there is none after it."""

    artifact: SafeName
    after: Count = 0
    """The stream sequence of the last piece; 0 for the first."""


class ArtifactPiece(Binary):
    """A piece, and where to ask on.

    Pieces are of `INLINE_BYTES` each but the last, so `index` says where it belongs: they may come in any order, and
    one may come twice.
    """

    data: Piece
    index: Count
    after: Count


class Held(Model):
    """A piece is kept."""

    index: Count
