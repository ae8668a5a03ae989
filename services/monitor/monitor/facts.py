"""The facts about one sandbox that all rules may read: decoded events, calls, and the state folded from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import TaskKind
from sandherd.contracts.events.call_facts import CheckKind, ToolOutcome

MAX_CALLS: Final = 64
"""Maximum number of calls in flight that are tracked for a sandbox; further calls are ignored."""
MAX_CLOSED: Final = 64
"""Maximum number of ended calls that are remembered. If the end of a call is stored before its beginning, the call must
not count as running."""

MAX_CONTENTS: Final = 16
"""Maximum number of contents of files that are remembered: if a file gets one of them again, it does not count as
new."""
_NOT_EXECUTED: Final = frozenset({"outage", "denied", "refused", "cancelled"})

USER_MESSAGES: Final = frozenset({"user_message", "interrupt"})
"""The types of messages that users send; the monitor sends interrupts, too."""
GUARDIAN: Final = "guardian"
CONDUCTOR: Final = "conductor"
BUDGETS: Final = "budgets"
SENDERS: Final = frozenset({GUARDIAN, CONDUCTOR, BUDGETS})
"""The senders of the monitor's own messages."""

NO_CALLS: Final[Mapping[str, "Call"]] = {}
"""Shared by all sandboxes without a call in flight, because an empty mapping for each would take most of the memory of
its state."""

Key = tuple[str, str]
"""`(project, sandbox)`."""


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """An event as the monitor reads it: its subject, the broker's time, and its content where a rule uses it.

    `number` is its stream sequence. `data` is None for types whose content no rule uses, and for invalid content; an
    event with invalid content only shows that the sandbox runs.
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
    """Whether the message is no valid event, although it has the subject of an event."""
    sequence: int = 0
    """The event's sequence number among the events of its source; 0 if it is not known."""

    @property
    def is_of_agent(self) -> bool:
        """Whether a worker has published the event, about its agent."""
        return self.type.startswith("agent.")


@dataclass(frozen=True, slots=True)
class Call:
    """A call in flight: it has begun, and its end has not been read.

    `digest` is the digest of the tool and its input; None for a call that the guardian does not compare.
    """

    tool: str
    begun_at: datetime
    digest: str | None = None
    whole: bool = False
    """Whether the call is the agent's whole program, which may take as long as its sandbox lives."""
    by_user: bool = False
    """Whether the call is a command that a user runs in the sandbox. It has its own time limit."""
    waits: bool = False
    """Whether the call is an approval. It has its own timeout."""
    number: int = 0
    """The stream sequence of the event with which the call began."""
    batch: int = 0
    """The `number` of the first call of its batch. Calls of one agent form a batch if each begins while an earlier one
    is in flight, as the calls of one response of a model do."""
    parent: str | None = None
    """The call that started the sub-agent which makes this call."""
    polls: bool = False
    """Whether the call is known to wait for something, or to check progress."""
    delegated: bool = False
    """Whether a sub-agent carries it out. The calls of that sub-agent then show that this call is not stuck."""


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A tool call that has ended, by the first event that ends it: what was called, and with which result.

    Equal digests mean equal values.
    """

    tool: str
    digest: str
    """A digest of the agent or sub-agent, the tool, and the input without irrelevant fields."""
    result: str
    """The digest of the call's result, without parts that vary by chance."""
    id: UUID | None
    """The id of the event that ended the call."""
    number: int
    """The stream sequence of that event."""
    at: datetime
    outcome: ToolOutcome | None = None
    """The outcome of the call, as in `agent.tool_completed`; None if the harness does not report it."""
    exit_code: int | None = None
    check: CheckKind | None = None
    """The kind of check that the call was, if it is known to check the work."""
    check_passed: bool | None = None
    turn: int = 0
    parent: str | None = None
    """The call of the sub-agent that made it; None if the agent itself did, or the harness does not report it."""
    began: int = 0
    """The stream sequence of the event with which the call began; `number` if that is not known."""
    begun_at: datetime | None = None
    batch: int = 0
    """As in `Call`; `began` if the beginning of the call is not known."""
    polls: bool = False
    """As in `Call`."""
    lines: int = 0
    """The number of lines of the result."""
    pair: str = ""
    """The digest of the call and its result together."""
    error: str | None = None
    """The digest of the cause, if the call has failed or timed out. It does not depend on the input of the call or on
    line numbers of files."""

    @property
    def ids(self) -> tuple[UUID, ...]:
        """The id of the event that ended the call, as evidence."""
        return () if self.id is None else (self.id,)

    @property
    def is_executed(self) -> bool:
        """Whether the call was executed, and neither denied, refused or cancelled nor prevented by an outage."""
        return self.outcome not in _NOT_EXECUTED


@dataclass(frozen=True, slots=True)
class Observation:
    """The input of a rule: an event, and the call that it ends, if it is the first event that ends that call."""

    event: ObservedEvent
    call: EndedCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about one sandbox. All times are the broker's: a sandbox's own clock is not trusted."""

    project: str
    sandbox: str
    number: int
    """The stream sequence of the last event that was folded in."""
    started_at: datetime
    last_sign_at: datetime
    """When the sandbox's worker last published an event, or the spawner last published that the sandbox runs."""
    last_heartbeat_at: datetime | None = None
    last_work_at: datetime | None = None
    last_message_at: datetime | None = None
    """When the agent last received a message of a user or program. The monitor's own nudges don't count."""
    spool: int = 0
    """Number of events in the sandbox's disk spool that the broker had not stored, by its last heartbeat."""
    finished_at: datetime | None = None
    turn: int = 0
    """The last turn of the sandbox's agent."""
    task_kind: TaskKind | None = None
    """The kind of the task's work, if the submitter states it."""
    episode_at: datetime | None = None
    """When its episode began, which is when the last message of a user was delivered; None for the first episode, which
    begins with the text of the task."""
    linger: float = 0.0
    """Seconds that the sandbox is to stay after its agent has ended."""
    in_flight: Mapping[str, Call] = field(default_factory=lambda: NO_CALLS)
    closed: tuple[str, ...] = ()
    new_contents: int = 0
    """Number of times that a file of the work tree got a content that is not in `contents`. Generated files don't
    count."""
    contents: tuple[str, ...] = ()
    """Digests of the last contents of files, newest last."""
    answered_at: datetime | None = None
    """When an approval of the sandbox was last answered or expired."""
    alone: bool = False
    """Whether the sandbox runs no task. It exists for the user who requested it, until its time to live ends."""
    expires_at: datetime | None = None
    """When the sandbox's time to live ends, and the spawner ends it."""
    paused: bool = False
    resumed_at: datetime | None = None
    """When the sandbox was last resumed. All waiting times start again then."""
    stopping: bool = False
    ended: bool = False
    taskid: str | None = None
    traceparent: str | None = None

    @property
    def key(self) -> Key:
        """The project and the name of the sandbox."""
        return self.project, self.sandbox

    def waiting_since(self, *moments: datetime | None) -> datetime:
        """The latest of `moments` and of the last resume; `started_at` if all of them are None.

        Time before a resume does not count, because a paused sandbox can do nothing.
        """
        known_moments = (at for at in (self.resumed_at, *moments) if at is not None)
        return max(known_moments, default=self.started_at)
