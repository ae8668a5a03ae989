"""Requests to event-ingest for the history: events, tasks, sandboxes, output, and whether anything is missing."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.model import MAX_TYPES, Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Page, Request
from sandherd.contracts.requests.live_state import SandboxFilter, SandboxList, TaskFilter, TaskList


class StoredEvent(Model):
    """An event as it is stored: its envelope, and its sequence in the stream."""

    stream_sequence: int
    envelope: dict[str, Any]


class EventList(Model):
    """Events in the requested order."""

    events: list[StoredEvent]
    next_cursor: str | None = None
    stored_through: int | None = None
    """Every event of the stream up to this `stream_sequence` was stored before the list was read. Later events may be
    stored in another order. Only in a first page, and only if the broker replied."""


class ListEvents(Request[EventList], Page):
    """List stored events, oldest first unless `newest_first`. A page has a cursor for the next page."""

    Answer: ClassVar[type[BaseModel]] = EventList
    type: ClassVar[str] = "event-ingest.events"
    entity: SafeName | None = None
    task: SafeName | None = None
    sandbox: SafeName | None = None
    source: str | None = None
    types: list[str] = Field(default_factory=list, max_length=MAX_TYPES)
    since: Moment | None = None
    until: Moment | None = None
    after_sequence: Count | None = None
    """Only events with a greater `sequence`; requires `sandbox` or `source`."""
    newest_first: bool = False


class HeartbeatSummary(Model):
    """A summary of all heartbeats of a sandbox."""

    count: int
    first_heartbeat: Moment | None = None
    last_heartbeat: Moment | None = None


class Trajectory(Model):
    """The events of an agent, with its heartbeats replaced by a summary."""

    sandbox_id: SafeName
    events: list[StoredEvent]
    heartbeat_summary: HeartbeatSummary
    total_events: int
    trajectory_events: int
    """Number of events on all pages, without heartbeats."""
    next_cursor: str | None = None
    prev_cursor: str | None = None
    has_more: bool = False


class GetTrajectory(Request[Trajectory], Page):
    """List the events of the agent in a sandbox."""

    Answer: ClassVar[type[BaseModel]] = Trajectory
    type: ClassVar[str] = "event-ingest.trajectory"
    sandbox: SafeName
    direction: Literal["older", "newer"] = "newer"


class ListPastTasks(Request[TaskList], TaskFilter):
    """List tasks in the history."""

    Answer: ClassVar[type[BaseModel]] = TaskList
    type: ClassVar[str] = "event-ingest.tasks"


class ListPastSandboxes(Request[SandboxList], SandboxFilter):
    """List sandboxes in the history."""

    Answer: ClassVar[type[BaseModel]] = SandboxList
    type: ClassVar[str] = "event-ingest.sandboxes"


class Gap(Model):
    """A range of missing numbers in a source's sequence, both ends included."""

    first: int
    last: int


class SourceAudit(Model):
    """The events of one source: how many are stored, the highest sequence, and what is missing."""

    source: str
    sandbox: SafeName | None = None
    stored: int
    highest: int
    missing: int
    gaps: list[Gap]
    """The gaps; at most the first 100."""
    closed: bool
    """Whether the source's last event is known, so that no events are missing at the end either."""
    conflicts: int = 0
    """Number of events with a sequence number that another event of the source has."""


class Audit(Model):
    """Whether all published events are stored."""

    sources: list[SourceAudit]
    """The sources of the requested sandbox; without one, only sources with gaps."""
    source_count: int
    event_count: int
    missing: int
    """Number of sequence numbers that are not stored, in all sources except implausible ones."""
    duplicates_refused: int
    unstored: int
    """Number of events in the stream that are not stored yet."""
    dead: int
    conflicts: int = 0
    """Number of events with a sequence number that another event of their source has. At most one of these events is
    the source's own."""
    implausible: int = 0
    """Number of sources with a sequence number more than a million above those that are stored: it is forged, rather
    than a sign of lost events."""
    unsaid: int = 0
    """Number of sandboxes that ended without the last event of their worker. Which events the worker had not published
    by then is unknown."""
    unsaid_sandboxes: list[SafeName] = Field(default_factory=list)
    """These sandboxes; at most the first 100."""


class GetAudit(Request[Audit]):
    """Check whether events are missing."""

    Answer: ClassVar[type[BaseModel]] = Audit
    type: ClassVar[str] = "event-ingest.audit"
    sandbox: SafeName | None = None
    """Only the sources of this sandbox, or of the task of this name and of all its sandboxes."""


class OutputChunk(Model):
    """A chunk of terminal output, as text with replacement characters: base64 would cost more than it is worth."""

    stream_sequence: int
    time: Moment
    text: str


class Output(Model):
    """Terminal output, oldest first."""

    chunks: list[OutputChunk]
    next_cursor: str | None = None


class GetOutput(Request[Output], Page):
    """Return the terminal output of a sandbox, as far as the short-lived stream OUTPUT still has it."""

    Answer: ClassVar[type[BaseModel]] = Output
    type: ClassVar[str] = "event-ingest.output"
    sandbox: SafeName
