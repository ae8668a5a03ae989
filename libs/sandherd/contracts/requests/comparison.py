"""The request to event-ingest that compares what the agents in two sandboxes did."""

from typing import ClassVar, Final

from pydantic import BaseModel

from sandherd.contracts.model import Count, MicroDollars, Milliseconds, Model, Moment, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.statistics import Statistics

MAX_COMPARED: Final = 1000
"""Maximum number of rows in each table of a comparison."""


class ComparedSandbox(Statistics):
    """One of the two sandboxes: its task, and its totals."""

    sandbox: SafeName
    project: SafeName
    task: SafeName | None = None
    attempt: Count = 1
    state: str | None = None
    events: Count
    first_event_at: Moment
    last_event_at: Moment
    seconds: Seconds
    """Seconds between its first event and its end. While it has not ended: between its first and its last event."""
    lines_added: Count = 0
    lines_removed: Count = 0


class ComparedTurn(Model):
    """A turn of one of the sandboxes."""

    seconds: Seconds
    """Seconds between its first and its last event."""
    tool_calls: Count = 0
    errors: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    cost_micro_usd: MicroDollars = 0


class ComparedTool(Model):
    """The calls of a tool in one of the sandboxes."""

    calls: Count = 0
    failed: Count = 0
    """Number of calls whose result is an error."""
    milliseconds: Milliseconds = 0
    """The total time from each call to its result."""


class ComparedFile(Model):
    """The changes of a file in one of the sandboxes."""

    changes: Count
    lines_added: Count = 0
    lines_removed: Count = 0
    change_type: str
    """The type of the last change."""
    content_sha256: str | None = None
    """The SHA-256 of the content after the last change, if it was published."""


class TypeRow(Model):
    """The number of events of a type in each of the two sandboxes."""

    type: str
    first: Count = 0
    second: Count = 0


class TurnRow(Model):
    """The turns of both sandboxes with this number; None: the sandbox has no such turn."""

    turn: Count
    first: ComparedTurn | None = None
    second: ComparedTurn | None = None


class ToolRow(Model):
    """The calls of a tool in both sandboxes; None: it was not called there."""

    tool: str
    first: ComparedTool | None = None
    second: ComparedTool | None = None


class FileRow(Model):
    """The changes of a file in both sandboxes; None: it was not changed there."""

    file_path: str
    first: ComparedFile | None = None
    second: ComparedFile | None = None
    same_content: bool | None = None
    """Whether the file has the same content in both sandboxes now; None: that is not known."""


class Comparison(Model):
    """Two sandboxes side by side."""

    first: ComparedSandbox
    second: ComparedSandbox
    types: list[TypeRow]
    turns: list[TurnRow]
    tools: list[ToolRow]
    files: list[FileRow]
    cut: bool = False
    """Whether a table has more rows than a reply can have."""


class GetComparison(Request[Comparison]):
    """Compare two sandboxes by types of events, turns, tools, files, cost and time."""

    Answer: ClassVar[type[BaseModel]] = Comparison
    type: ClassVar[str] = "event-ingest.comparison"
    first: SafeName
    second: SafeName
