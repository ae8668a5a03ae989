"""What may be asked for at once. A reply is `{"ok": …}` or `{"error": {code, message, field, remedy}}`."""

from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sandherd.contracts.errors import Problem
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt, Count, Moment, Number
from sandherd.contracts.states import SandboxState, TaskState

REQUESTS: Final[dict[str, type["Request[Any]"]]] = {}
"""Every request, by name: `<service>.<verb>`."""

AnswerT = TypeVar("AnswerT")


class Request(BaseModel, Generic[AnswerT]):
    """A question to a service. `Answer` is the model of what stands in the reply's `ok`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    Answer: ClassVar[type[BaseModel]]
    type: ClassVar[str]
    answered_by: ClassVar[str]
    """The service. Not called `service`: an attribute becomes the default of a field of that name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type" in cls.__dict__:
            cls.answered_by = cls.type.partition(".")[0]
            REQUESTS[cls.type] = cls


class Reply(BaseModel, Generic[AnswerT]):
    """What comes back: one of the two, never both."""

    ok: AnswerT | None = None
    error: Problem | None = None


class Page(BaseModel):
    """How much of a list, and from where."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: str | None = None
    """Where the last page ended, as it was given."""


# --- spawner: what is so now -------------------------------------------------------------------------------------


class TaskView(BaseModel):
    """A task as it stands."""

    project: SafeName
    task: SafeName
    state: TaskState
    attempt: Attempt = 1
    text: str = ""
    harness: str = ""
    runtime: str = ""
    sandbox: SafeName | None = None
    submitted_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None
    error: str | None = None
    error_type: str | None = None
    result: dict[str, Any] = Field(default_factory=dict)


class SandboxView(BaseModel):
    """A sandbox as it stands."""

    project: SafeName
    sandbox: SafeName
    state: SandboxState
    task: SafeName | None = None
    attempt: Attempt = 1
    runtime: str
    isolation: str | None = None
    requested_at: Moment
    running_at: Moment | None = None
    ended_at: Moment | None = None
    reason: str | None = None
    error: str | None = None
    events: Count = 0
    last_event_at: Moment | None = None
    last_heartbeat_at: Moment | None = None


class TaskList(BaseModel):
    """Tasks, newest first."""

    tasks: list[TaskView]
    next_cursor: str | None = None


class SandboxList(BaseModel):
    """Sandboxes, newest first."""

    sandboxes: list[SandboxView]
    next_cursor: str | None = None


class LiveTasks(Request[TaskList], Page):
    """The tasks in the spawner's bucket: all that live, and those that ended lately."""

    Answer: ClassVar[type[BaseModel]] = TaskList
    type: ClassVar[str] = "spawner.tasks"
    task: SafeName | None = None
    state: TaskState | None = None


class LiveSandboxes(Request[SandboxList], Page):
    """The sandboxes in the spawner's bucket: all that live, and those that ended lately."""

    Answer: ClassVar[type[BaseModel]] = SandboxList
    type: ClassVar[str] = "spawner.sandboxes"
    sandbox: SafeName | None = None
    state: SandboxState | None = None


class CredentialGrant(BaseModel):
    """A worker's credential: a NATS user JWT for the key that the sandbox holds."""

    jwt: str
    expires_at: Moment


class AskCredential(Request[CredentialGrant]):
    """A worker's question for a new credential, for a key only it holds. The subject says who asks."""

    Answer: ClassVar[type[BaseModel]] = CredentialGrant
    type: ClassVar[str] = "spawner.credential"
    public_key: Annotated[str, StringConstraints(pattern="^U[A-Z2-7]{55}$")]
    fence: Number
    """The fencing token of the attempt; an older one is refused."""


# --- event-ingest: what was so -------------------------------------------------------------------------------------


class StoredEvent(BaseModel):
    """An event as it is kept: its envelope, and where it stands in the stream."""

    stream_sequence: int
    envelope: dict[str, Any]


class EventList(BaseModel):
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


class HeartbeatSummary(BaseModel):
    """All heartbeats of a sandbox, folded."""

    count: int
    first_heartbeat: Moment | None = None
    last_heartbeat: Moment | None = None


class Trajectory(BaseModel):
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


class Gap(BaseModel):
    """Numbers that are missing in a source's sequence, both ends included."""

    first: int
    last: int


class SourceAudit(BaseModel):
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


class Audit(BaseModel):
    """Whether all that was said is kept."""

    sources: list[SourceAudit]
    """Those asked for by name, and otherwise only the ones with gaps."""
    source_count: int
    event_count: int
    missing: int
    duplicates_refused: int
    unstored: int
    """What the stream holds that is not stored yet."""
    dead: int


class AskAudit(Request[Audit]):
    """Is anything missing?"""

    Answer: ClassVar[type[BaseModel]] = Audit
    type: ClassVar[str] = "event-ingest.audit"
    sandbox: SafeName | None = None


class OutputChunk(BaseModel):
    """A piece of terminal output, as base64 would cost more than it helps: text with replacement characters."""

    stream_sequence: int
    time: Moment
    text: str


class Output(BaseModel):
    """Terminal output, oldest first."""

    chunks: list[OutputChunk]
    next_cursor: str | None = None


class AskOutput(Request[Output], Page):
    """The terminal output of a sandbox, as far as the short-lived OUTPUT stream still has it."""

    Answer: ClassVar[type[BaseModel]] = Output
    type: ClassVar[str] = "event-ingest.output"
    sandbox: SafeName


# --- dead letters ---------------------------------------------------------------------------------------------------


class DeadLetter(BaseModel):
    """A message that could not be handled, and why."""

    number: int
    """Its place in the DEAD stream; it is asked for by this."""
    service: SafeName
    reason: Problem
    subject: str
    stream: str
    stream_sequence: int
    size: int
    dead_at: Moment
    payload: str | None = None
    """As text with replacement characters; only where one was asked for by number."""


class DeadLetters(BaseModel):
    """Dead letters, newest first."""

    letters: list[DeadLetter]
    next_cursor: str | None = None


class AskDead(Request[DeadLetters], Page):
    """What lies in DEAD."""

    Answer: ClassVar[type[BaseModel]] = DeadLetters
    type: ClassVar[str] = "event-ingest.dead"
    number: Number | None = None
    service: SafeName | None = None


class Requeued(BaseModel):
    """What became of a dead letter that was put back."""

    number: int
    outcome: Literal["done", "retry", "dead"]
    event: UUID | None = None
    detail: str | None = None


class Requeue(Request[Requeued]):
    """Handle a dead letter once more; it leaves DEAD when that succeeds. Each service answers for its own."""

    Answer: ClassVar[type[BaseModel]] = Requeued
    number: Number


class RequeueSpawner(Requeue):
    """Put back a dead letter of the spawner."""

    type: ClassVar[str] = "spawner.requeue"


class RequeueEventIngest(Requeue):
    """Put back a dead letter of event-ingest."""

    type: ClassVar[str] = "event-ingest.requeue"


class RequeueMessageRelay(Requeue):
    """Put back a dead letter of the message-relay."""

    type: ClassVar[str] = "message-relay.requeue"
