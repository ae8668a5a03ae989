"""The monitor's state of one sandbox: small, immutable, and all that its rules use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from sandherd.contracts.events import EventData

MAX_CALLS: Final = 64
"""Maximum in-flight calls tracked per sandbox; extra calls are ignored."""
MAX_CLOSED: Final = 64
"""Maximum ended calls remembered, so that one whose end was stored before its beginning does not count as running."""
MAX_EVIDENCE: Final = 16
FLOOD_WINDOW_SECONDS: Final = 60.0
"""The flood window, over which a sandbox's published messages are summed up."""

Key = tuple[str, str]
"""`(project, sandbox)`."""
Outcome = Literal["obeyed", "ignored", "undelivered", "finished"]


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """An event as the monitor reads it: its subject, the broker's time, and its content where a rule uses it.

    `number` is its stream sequence. `data` is None for types whose content no rule uses, and for invalid content, which
    shows that the sandbox lives, and nothing more.
    """

    project: str
    entity: str
    type: str
    number: int
    at: datetime
    data: EventData | None = None
    id: UUID | None = None
    taskid: str | None = None
    traceparent: str | None = None
    size: int = 0
    """Size of the whole event, in bytes."""
    junk: bool = False
    """Whether it is not a valid event, although its subject is one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call in flight. `digest` is that of the tool and its input; None where the guardian compares nothing."""

    tool: str
    begun_at: datetime
    digest: str | None = None
    whole: bool = False
    """Whether it is the agent's whole program."""
    asked: bool = False
    """Whether a user requested it: a command run in the sandbox, with a time limit of its own."""
    waits: bool = False
    """Whether it is an approval, which has its own timeout."""


@dataclass(frozen=True, slots=True)
class Streak:
    """The same call with the same result, `count` times in a row. `began` is the stream sequence of the first one."""

    call: str
    result: str
    tool: str
    began: int
    began_at: datetime
    count: int = 1
    evidence: tuple[UUID, ...] = ()
    """Event ids of the last results, newest last."""


@dataclass(frozen=True, slots=True)
class Steering:
    """A nudge: a message that is to stop the agent's loop. It is kept until its outcome has been published."""

    correlation: str
    message: str
    text: str
    rule: str
    number: int
    decided_at: datetime
    call: str
    result: str
    """`call` and `result`: the digests of the repeated call and of its result."""
    taken: bool = False
    """Whether the message-relay has accepted it."""
    heard_at: datetime | None = None
    """When the agent received it; what it does from then on decides the outcome."""
    repeats: int = 0
    """How often the agent has repeated the call since."""
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class ActedFinding:
    """A finding that was acted upon: its rule, when, and how often."""

    rule: str
    at: datetime
    times: int
    event: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxActivity:
    """One watched sandbox. All times are the broker's: a sandbox's own clock is not trusted."""

    project: str
    sandbox: str
    number: int
    """The stream sequence of the last event that was folded in."""
    started_at: datetime
    last_sign_at: datetime
    """When its worker last published, or the spawner last published that it is to live."""
    last_heartbeat_at: datetime | None = None
    last_work_at: datetime | None = None
    last_message_at: datetime | None = None
    """When it last received a message of a user or program; the monitor's own nudges don't count."""
    spool: int = 0
    """Number of events in its disk spool that the broker had not stored, by its last heartbeat."""
    said_since: datetime | None = None
    said_bytes: int = 0
    """Bytes that its worker published in the last flood window, which began at `said_since`."""
    said_messages: int = 0
    """Number of messages in that window."""
    said_junk: int = 0
    """Number of those messages that were no valid events."""
    finished_at: datetime | None = None
    linger: float = 0.0
    """How long it is to stay after its agent has ended, in seconds."""
    in_flight: Mapping[str, Call] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    answered_at: datetime | None = None
    """When an approval of its was last answered or expired."""
    streak: Streak | None = None
    steering: Steering | None = None
    steered_at: datetime | None = None
    steered: int = 0
    found: ActedFinding | None = None
    alone: bool = False
    """Whether it runs no task: it exists for the user who requested it, until its time to live ends."""
    expires_at: datetime | None = None
    """When its time to live ends, by the spawner, which then ends the sandbox."""
    paused: bool = False
    resumed_at: datetime | None = None
    """When it was last resumed; all waiting times start again then."""
    stopping: bool = False
    ended: bool = False
    taskid: str | None = None
    traceparent: str | None = None

    @property
    def key(self) -> Key:
        """Its project and name."""
        return self.project, self.sandbox
