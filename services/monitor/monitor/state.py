"""What the monitor remembers of one sandbox: small, immutable, and all that its rules look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from sandherd.contracts.events import EventData

MOST_CALLS: Final = 64
"""So many calls in flight are remembered per sandbox; a sandbox that opens more is not watched more closely."""
MOST_CLOSED: Final = 64
"""So many ended calls are remembered, so that one whose end was stored before its beginning is not taken as running."""
MOST_EVIDENCE: Final = 16
SPELL: Final = 60.0
"""What a sandbox says is summed up over so many seconds."""

Key = tuple[str, str]
"""`(project, sandbox)`."""
Outcome = Literal["obeyed", "ignored", "undelivered", "finished"]


@dataclass(frozen=True, slots=True)
class Seen:
    """An event as the monitor reads it: its subject, the broker's time of it, and what it says, where that matters.

    `number` is its place in the stream. `data` is None for types whose content no rule looks at, and for content
    that is not valid: it shows that the sandbox lives, and nothing more.
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
    """Of the whole event, in bytes."""
    junk: bool = False
    """Whether it is no event at all, whatever its subject says."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call in flight. `digest` stands for the tool and its input; None where the guardian compares nothing."""

    tool: str
    begun_at: datetime
    digest: str | None = None
    whole: bool = False
    """Whether it is the agent's whole program."""
    asked: bool = False
    """Whether somebody outside asked for it: a command that is run in the sandbox, with a time limit of its own."""
    waits: bool = False
    """Whether it is a question to a person, who has the time that the question says."""


@dataclass(frozen=True, slots=True)
class Streak:
    """The same call with the same result, so many times in a row. `began` is the first one's place in the stream."""

    call: str
    result: str
    tool: str
    began: int
    began_at: datetime
    count: int = 1
    evidence: tuple[UUID, ...] = ()
    """Ids of the last results, newest last."""


@dataclass(frozen=True, slots=True)
class Steering:
    """A message that was sent to bring the agent back, until what came of it has been said."""

    correlation: str
    message: str
    text: str
    rule: str
    number: int
    decided_at: datetime
    call: str
    result: str
    """The digests of the call that it is about, and of that call's result."""
    taken: bool = False
    """Whether the message-relay has it."""
    heard_at: datetime | None = None
    """When the agent got it; what it does from then on is its answer."""
    repeats: int = 0
    """How often it has done the same again since."""
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A finding that was acted upon: what, when, and how often."""

    rule: str
    at: datetime
    times: int
    event: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One sandbox under watch. Every time is the broker's: a sandbox's own clock is not trusted."""

    project: str
    sandbox: str
    number: int
    """The stream sequence of the last event that was folded in."""
    started_at: datetime
    last_sign_at: datetime
    """Its last sign of life, or the spawner's last word that it should live."""
    last_heartbeat_at: datetime | None = None
    last_work_at: datetime | None = None
    last_message_at: datetime | None = None
    """When a person or program last spoke to it; the monitor's own nudges don't count."""
    spool: int = 0
    """How many events its disk held that the broker had not taken, by its last heartbeat."""
    said_since: datetime | None = None
    said_bytes: int = 0
    """How much its worker said in the last spell, and when that began."""
    said_messages: int = 0
    """In how many messages that was."""
    said_junk: int = 0
    """How many of them were no events."""
    finished_at: datetime | None = None
    linger: float = 0.0
    """How long it was asked to stay after its agent has ended, in seconds."""
    in_flight: Mapping[str, Call] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    answered_at: datetime | None = None
    """When a person last answered it, or did not in time."""
    streak: Streak | None = None
    steering: Steering | None = None
    steered_at: datetime | None = None
    steered: int = 0
    found: Found | None = None
    alone: bool = False
    """Whether no task is done in it: it is there for whoever asked for it, until its time to live is over."""
    expires_at: datetime | None = None
    """When its time to live is over, by the spawner, which ends it then."""
    paused: bool = False
    resumed_at: datetime | None = None
    """When it went on after a pause: what was to be waited for is waited for anew."""
    stopping: bool = False
    ended: bool = False
    taskid: str | None = None
    traceparent: str | None = None

    @property
    def key(self) -> Key:
        """Its project and name."""
        return self.project, self.sandbox
