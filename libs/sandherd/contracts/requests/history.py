"""Questions to event-ingest: what was so, what was said, and whether anything is missing."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count, Moment
from sandherd.contracts.requests.base import Page, Request
from sandherd.contracts.requests.live import SandboxList, TaskList
from sandherd.contracts.states import SandboxState, TaskState


class StoredEvent(Model):
    """An event as it is kept: its envelope, and where it stands in the stream."""

    stream_sequence: int
    envelope: dict[str, Any]


class EventList(Model):
    """Events in the order asked for."""

    events: list[StoredEvent]
    next_cursor: str | None = None


class AskEvents(Request[EventList], Page):
    """Stored events, oldest first unless `newest_first`; a page ends with a cursor for the next."""

    Answer: ClassVar[type[BaseModel]] = EventList
    type: ClassVar[str] = "event-ingest.events"
    entity: SafeName | None = None
    task: SafeName | None = None
    sandbox: SafeName | None = None
    source: str | None = None
    types: list[str] = Field(default_factory=list, max_length=64)
    since: Moment | None = None
    until: Moment | None = None
    after_sequence: Count | None = None
    """Only events whose `sequence` is greater; with `sandbox` or `source`."""
    newest_first: bool = False


class HeartbeatSummary(Model):
    """All heartbeats of a sandbox, folded."""

    count: int
    first_heartbeat: Moment | None = None
    last_heartbeat: Moment | None = None


class Trajectory(Model):
    """What an agent did, heartbeats folded into a summary."""

    sandbox_id: SafeName
    events: list[StoredEvent]
    heartbeat_summary: HeartbeatSummary
    total_events: int
    trajectory_events: int
    """All that are no heartbeats, on every page."""
    next_cursor: str | None = None
    prev_cursor: str | None = None
    has_more: bool = False


class AskTrajectory(Request[Trajectory], Page):
    """What the agent in a sandbox did."""

    Answer: ClassVar[type[BaseModel]] = Trajectory
    type: ClassVar[str] = "event-ingest.trajectory"
    sandbox: SafeName
    direction: Literal["older", "newer"] = "newer"


class PastTasks(Request[TaskList], Page):
    """Tasks in the history."""

    Answer: ClassVar[type[BaseModel]] = TaskList
    type: ClassVar[str] = "event-ingest.tasks"
    task: SafeName | None = None
    state: TaskState | None = None


class PastSandboxes(Request[SandboxList], Page):
    """Sandboxes in the history."""

    Answer: ClassVar[type[BaseModel]] = SandboxList
    type: ClassVar[str] = "event-ingest.sandboxes"
    sandbox: SafeName | None = None
    state: SandboxState | None = None


class Gap(Model):
    """Numbers that are missing in a source's sequence, both ends included."""

    first: int
    last: int


class SourceAudit(Model):
    """What is known of one source: how far it got, and what of it is missing."""

    source: str
    sandbox: SafeName | None = None
    stored: int
    highest: int
    missing: int
    gaps: list[Gap]
    """The first hundred."""
    closed: bool
    """Whether the source has said its last word, so that nothing is missing at the end either."""
    conflicts: int = 0
    """Events that bear a number which another event of the source has."""


class Audit(Model):
    """Whether all that was said is kept."""

    sources: list[SourceAudit]
    """Those asked for by name, and otherwise only the ones with gaps."""
    source_count: int
    event_count: int
    missing: int
    """Numbers that were not stored, of all sources but the implausible ones."""
    duplicates_refused: int
    unstored: int
    """What the stream holds that is not stored yet."""
    dead: int
    conflicts: int = 0
    """Events that bear a number which another event of their source has: not both can be the source's own word."""
    implausible: int = 0
    """Sources with a number over a million beyond what is stored of them: forged rather than lost."""
    unsaid: int = 0
    """Sandboxes that have ended without their agent's last word: what it had not said by then is not known."""
    unsaid_sandboxes: list[SafeName] = Field(default_factory=list)
    """The first hundred of them."""


class AskAudit(Request[Audit]):
    """Is anything missing?"""

    Answer: ClassVar[type[BaseModel]] = Audit
    type: ClassVar[str] = "event-ingest.audit"
    sandbox: SafeName | None = None


class OutputChunk(Model):
    """A piece of terminal output, as base64 would cost more than it helps: text with replacement characters."""

    stream_sequence: int
    time: Moment
    text: str


class Output(Model):
    """Terminal output, oldest first."""

    chunks: list[OutputChunk]
    next_cursor: str | None = None


class AskOutput(Request[Output], Page):
    """The terminal output of a sandbox, as far as the short-lived OUTPUT stream still has it."""

    Answer: ClassVar[type[BaseModel]] = Output
    type: ClassVar[str] = "event-ingest.output"
    sandbox: SafeName
