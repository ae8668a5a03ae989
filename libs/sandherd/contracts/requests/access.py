"""Commands and files in a sandbox: the fields of clients' requests to the spawner, and of the spawner's to workers.

Each request has two classes with the same fields: one names the sandbox (`requests.client`), the other is sent on that
sandbox's subject (`requests.worker`). Bytes are encoded as base64url (RFC 4648 §5). Content larger than `INLINE_BYTES`
is sent in chunks through ARTIFACTS.
"""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.agent_server import ServerState
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.harnesses import Argument
from sandherd.contracts.model import Count, Model, Moment, Whole
from sandherd.contracts.names import EnvName, SafeName
from sandherd.contracts.patterns import NO_NUL
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.terminal import TerminalSize

INLINE_BYTES: Final = 128 * 1024
"""Maximum number of bytes of a file or of output in one request or reply; also the size of a chunk."""
MAX_WAIT_SECONDS: Final = 5.0
"""How long a reply may be delayed to wait for output or a result, in seconds."""
DEFAULT_EXEC_SECONDS: Final = 600

TreePath = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=NO_NUL)]
"""A path relative to the sandbox's work tree; `.` is the tree itself. A path that leads out of it is refused."""
Piece = Annotated[bytes, Field(max_length=INLINE_BYTES)]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Mode = Annotated[int, Field(ge=0, le=0o777)]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]
CommandState = Literal["running", "exited", "killed", "timed_out", "failed"]
TransferName = Annotated[SafeName, StringConstraints(pattern="^trf-")]
"""The id of one upload or download, `trf-…`, chosen by the requester. A repeated request with the same id continues the
transfer, which is done once."""


class Binary(Model):
    """A model with fields of bytes, which are base64url in JSON."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class ExecFields(Binary):
    """A command to run. A repeated request with the same `exec` runs it once."""

    exec: SafeName
    """The command's id, `exc-…`, chosen by the requester."""
    command: Annotated[list[Argument], Field(min_length=1, max_length=256)]
    cwd: TreePath = "."
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    """Variables in addition to the sandbox's own."""
    stdin: Piece | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = DEFAULT_EXEC_SECONDS
    wait_seconds: Wait = MAX_WAIT_SECONDS
    """How long the reply may wait for output or for the end of the command."""
    terminal: TerminalSize | None = Field(default=None, exclude_if=lambda size: size is None)
    """The size of the terminal to run the command with, in place of pipes and `stdin`. All of its output is then
    `stdout`, and `exec_input` writes to the terminal. The command is ended if there is no request about it for 60 s."""


class ExecStatusFields(Model):
    """The state of a command, and its output from `offset` on."""

    exec: SafeName
    offset: Count = 0
    wait_seconds: Wait = MAX_WAIT_SECONDS


class ExecKillFields(Model):
    """A signal to a command and all processes that it has started."""

    exec: SafeName
    signal: Literal["TERM", "INT", "KILL"] = "TERM"


class ExecOutput(Binary):
    """A piece of a command's output; the pieces are in order."""

    stream: Literal["stdout", "stderr"]
    data: Piece


class ExecState(Binary):
    """The state of a command, with a part of its output. Continue from `next_offset` until `complete`."""

    exec: SafeName
    state: CommandState
    """`failed`: the command could not be started, see `error`."""
    exit_code: Whole | None = None
    signal: Whole | None = None
    error: str | None = None
    output: list[ExecOutput] = Field(default_factory=list)
    next_offset: Count = 0
    complete: bool = False
    """Whether the command has ended and all of its stored output was returned."""
    dropped_bytes: Count = 0
    """Number of bytes of output that were not stored."""
    started_at: Moment | None = None
    ended_at: Moment | None = None


class ListFilesFields(Model):
    """A folder to list."""

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
    """The entries of a folder, ordered by path."""

    entries: list[FileEntry]
    truncated: bool = False


class UploadFields(Binary):
    """A file for the work tree, or an archive of a folder: its bytes, or a reference to them. The write is atomic.

    Repeat the request with the same `transfer` until `done`.
    """

    transfer: TransferName
    path: TreePath
    data: Piece | None = None
    artifact: ArtifactRef | None = None
    sha256: Digest
    mode: Mode = 0o644
    unpack: bool = False
    """Whether the bytes are a tar archive, to be unpacked as the folder `path`."""
    wait_seconds: Wait = MAX_WAIT_SECONDS
    """How long the reply may wait for the end of the transfer."""

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if (self.data is None) == (self.artifact is None):
            raise ValueError("give either data or artifact, not both")
        if self.artifact is not None and self.artifact.sha256 != self.sha256:
            raise ValueError("sha256 differs from the artifact's")
        return self


class FileWritten(Model):
    """The result of an upload, or its progress."""

    path: str
    size: Count
    sha256: Digest
    files: Count = 1
    done: bool = True
    """Whether the upload is complete. If not, nothing of it is visible yet, and the request has to be repeated."""
    moved: Count = 0
    """How many bytes the sandbox has received so far."""


class DownloadFields(Model):
    """A file to download, or a folder as a tar archive. Repeat the request with the same `transfer` until `done`."""

    transfer: TransferName
    path: TreePath
    wait_seconds: Wait = MAX_WAIT_SECONDS
    """How long the reply may wait for the end of the transfer."""


class FileRead(Binary):
    """The result of a download, in `data` or stored as `artifact` for an hour; or its progress."""

    path: str
    kind: Literal["file", "folder"]
    """For a folder, the bytes are a tar archive."""
    size: Count
    """The size in bytes. For a folder, it is known when the download is done."""
    sha256: Digest | None = None
    """The SHA-256 of the bytes, known when the download is done."""
    mode: Mode = 0o644
    data: Piece | None = None
    artifact: ArtifactRef | None = None
    done: bool = True
    """Whether the download is complete; otherwise the request has to be repeated."""
    moved: Count = 0
    """How many bytes the sandbox has sent so far."""


class ChunkFields(Model):
    """The next chunk of an artifact, in stream order. The reply is `not_found` if there is no chunk after `after`."""

    artifact: SafeName
    after: Count = 0
    """The stream sequence of the last chunk that was received; 0 to get the first chunk."""


class ArtifactPiece(Binary):
    """A chunk of an artifact, and `after` for the next request.

    Every chunk but the last has `INLINE_BYTES` bytes, so `index` gives its position: chunks may arrive in any order and
    more than once.
    """

    data: Piece
    index: Count
    after: Count


class ChunkStored(Model):
    """The chunk was stored."""

    index: Count


class AgentServerView(Model):
    """The current state of an agent server."""

    sandbox: SafeName
    kind: str
    state: ServerState
    starts: Count = 0
    url: str | None = None
    """Its URL, for a client that can reach the sandbox's runtime; None while the server does not respond."""
    key: str | None = Field(default=None, repr=False)
    """A secret, returned only on request (`with_key`): the value of the header `X-Session-API-Key`."""
    headers: dict[str, str] | None = Field(default=None, repr=False)
    """Further headers that every request to the server needs, by name. They are as secret as the key, and returned only
    with it."""
    error: str | None = None


class GetAgentServer(Request[AgentServerView]):
    """Return the address and state of a sandbox's agent server."""

    Answer: ClassVar[type[BaseModel]] = AgentServerView
    type: ClassVar[str] = "spawner.agent_server"
    sandbox: SafeName
    with_key: bool = False
    """Whether to return its key, too, and the headers that every request to it needs."""
