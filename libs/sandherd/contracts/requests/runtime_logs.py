"""The log that a runtime stores of a sandbox: the output of its first process, container or pod."""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Count
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.access import Binary, Piece
from sandherd.contracts.requests.base import Request

MAX_LOG_LINES: Final = 1000
MAX_LOG_BYTES: Final = 1024 * 1024


class RuntimeLog(Binary):
    """The end of a log: in `data`, or stored as `artifact` for an hour. It is text from a sandbox."""

    sandbox: SafeName
    size: Count
    """The size in bytes."""
    data: Piece | None = None
    artifact: ArtifactRef | None = None
    truncated: bool = False
    """Whether the requested lines have more than `max_bytes` bytes; their beginning is then missing."""


class GetRuntimeLogs(Request[RuntimeLog]):
    """Return the last lines of the log that a runtime stores of a sandbox."""

    Answer: ClassVar[type[BaseModel]] = RuntimeLog
    type: ClassVar[str] = "spawner.runtime_logs"
    sandbox: SafeName
    lines: Annotated[int, Field(ge=1, le=MAX_LOG_LINES)] = 200
    """Maximum number of lines, counted from the end."""
    max_bytes: Annotated[int, Field(ge=1, le=MAX_LOG_BYTES)] = MAX_LOG_BYTES
    """Maximum number of bytes of these lines, counted from the end."""
