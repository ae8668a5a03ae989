"""The monitor's state of one sandbox: the facts, each rule's part, and what the monitor has done about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import Base64Bytes, Field

from monitor.dataclass_copies import copier
from monitor.facts import Facts
from monitor.outages import Outage
from monitor.sandbox_usage import NO_PROGRESS, AgentTotals
from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.events.agent import AgentStarted, TaskKind
from sandherd.contracts.events.monitor import InterventionOutcome, InterventionStep, SteeringStep
from sandherd.contracts.records import MAX_STEERINGS, MAX_TITLE

NO_PARTS: Final[Mapping[str, Any]] = {}
NONE_DISABLED: Final[Mapping[str, str]] = {}
NONE_ASSESSED: Final[Mapping[str, str]] = {}
NONE_ASSESSED_THROUGH: Final[Mapping[str, int]] = {}
NONE_MUTED: Final[Mapping[str, datetime | None]] = {}
MAX_INTERVENTIONS: Final = MAX_STEERINGS
"""Maximum number of interventions that are remembered."""
MAX_CITED: Final = 4
"""Maximum number of events that a remembered intervention cites."""
Outcome = InterventionOutcome
Answer = Literal["continue", "stop"]


@dataclass(frozen=True, slots=True)
class Steering:
    """An intervention that is to stop a pattern. It is stored until its outcome has been published."""

    correlation: str
    """The id of the intervention, which its decision, its messages and its outcome have."""
    message: str
    """The name of its message."""
    text: str
    rule: str
    """The rule that decided on it."""
    number: int
    """Its number among the interventions in this sandbox, from 1."""
    decided_at: datetime
    pattern: str
    """The key of the pattern that it is to stop. Only the rule `watched` can interpret it."""
    evidence: tuple[UUID, ...] = ()
    """Ids of the events that it is based on."""
    step: InterventionStep = "nudge"
    watched: str = ""
    """The rule that recognises the pattern."""
    sent_at: datetime | None = None
    """When its last command was published; None if the next command is not published yet."""
    taken: bool = False
    """Whether the message-relay has accepted the message, or the sandbox was paused."""
    received_at: datetime | None = None
    """When the agent received the message, or was resumed. What the agent does from then on decides the outcome."""
    repeats: int = 0
    """The number of times that the pattern has occurred since the agent received the message or was resumed."""
    others: int = 0
    """The number of other observations since the pattern last occurred."""
    clear_turn: int = 0
    """The turn in which the agent received the message or was resumed, or in which it last showed the pattern."""
    repeated: tuple[UUID, ...] = ()
    """Ids of the last events that have shown the pattern since the agent received the message or was resumed."""
    outcome: Outcome | None = None
    approval: str | None = None
    """The approval that a pause requests."""
    requested: bool = False
    """Whether the message-relay has accepted the approval request."""
    answer: Answer | None = None
    """The user's answer to the approval request."""
    by: str | None = None
    """The user who answered."""
    instruction: str | None = None
    """The user's instruction for the agent when it continues."""
    instructed: bool = False
    """Whether the message-relay has accepted the message with the instruction."""
    cancelled: bool = False
    """Whether a pause was cancelled because the agent had ended."""
    closed: bool = False
    """Whether the approval is decided, expired or withdrawn."""

    @property
    def instruction_message(self) -> str:
        """The name of the message with the instruction."""
        return f"{self.message}-i"


@dataclass(frozen=True, slots=True)
class Intervention:
    """A remembered intervention."""

    number: int
    rule: str
    step: InterventionStep
    decided_at: datetime
    watched: str
    pattern: str
    correlation: str
    message: str = ""
    evidence: tuple[UUID, ...] = ()
    received_at: datetime | None = None
    outcome: Outcome | None = None
    outcome_at: datetime | None = None
    approval: str | None = None


@dataclass(frozen=True, slots=True)
class ObservedState:
    """A published pattern without an intervention: its rule and key, and the step that it reached."""

    rule: str
    pattern: str
    began: int
    step: SteeringStep


@dataclass(frozen=True, slots=True)
class ActedFinding:
    """A finding that was acted upon: its rule, when it was last acted upon, and how often."""

    rule: str
    at: datetime
    times: int
    event: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The assignment of a sandbox's agent, from the task's specification."""

    attempt: int
    harness: str
    title: str
    """The beginning of the task's text."""
    task_kind: TaskKind | None = None
    repository: str | None = None
    base: str | None = None
    branch: str | None = None

    @classmethod
    def of(cls, data: AgentStarted) -> "Assignment":
        """The assignment, from the agent's first event. Texts that many sandboxes have in common are stored once."""
        return cls(
            attempt=data.attempt,
            harness=intern(data.sdk[:80]),
            title=data.task[:MAX_TITLE],
            task_kind=data.task_kind,
            repository=intern(data.repository) if data.repository else None,
            base=intern(data.base) if data.base else None,
            branch=data.branch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxActivity(Facts):
    """The state of one watched sandbox. A rule gets its `Facts`, and the rule's own part."""

    parts: Annotated[Mapping[str, Any], Field(exclude=True)] = field(default_factory=lambda: NO_PARTS)
    """The state of each rule, by its name; `snapshot` encodes it by the type that the rule declares."""
    disabled: Mapping[str, str] = field(default_factory=lambda: NONE_DISABLED)
    """The rules that failed for this sandbox and are not evaluated for it any more, and how each failed."""
    assessed: Mapping[str, str] = field(default_factory=lambda: NONE_ASSESSED)
    """The verdict of the model on each soft finding of this episode, by rule; `none` if it had none."""
    assessed_through: Mapping[str, int] = field(default_factory=lambda: NONE_ASSESSED_THROUGH)
    """By rule, the source sequence of the last event of the agent that the last verdict was based on. The next
    assessment begins after it."""
    muted: Mapping[str, datetime | None] = field(default_factory=lambda: NONE_MUTED)
    """The rules that a user has muted, and until when; None means until they are unmuted."""
    max_step: SteeringStep | None = None
    """The strongest step of guardian rules, if the task, its profile or its project sets it."""
    interventions: tuple[Intervention, ...] = ()
    """The last `MAX_INTERVENTIONS` interventions, oldest first."""
    observed: tuple[ObservedState, ...] = ()
    """Patterns that were recently published without an intervention."""
    steering: Steering | None = None
    """The last intervention, until its outcome is published."""
    steered_at: datetime | None = None
    """When the last intervention was decided on."""
    steered: int = 0
    """The number of interventions that were decided on."""
    found: ActedFinding | None = None
    """The last finding of a housekeeping rule that was acted upon."""
    assignment: Assignment | None = None
    progress: AgentTotals = NO_PROGRESS
    outage: Outage | None = None
    """The outage that affects the agent now, or affected it recently."""
    budget: BudgetLimits | None = None
    """The budget of its task, from the specification or the profile."""
    edits: Base64Bytes = b""
    """The files that it has edited, as `file_edits` packs them."""

    def changed(self, **changes: Any) -> "SandboxActivity":
        """A copy with these changes. `dataclasses.replace` takes five times as long."""
        return self.draft().changed(**changes).sealed()

    def draft(self) -> "SandboxActivity":
        """A copy that `changed` modifies in place, until `sealed` is called. Nothing else may refer to it until then.

        An event is folded in several steps, and one copy for each step takes longer than the steps.
        """
        copy = object.__new__(_Draft)
        _copy_fields(self, copy)
        return copy

    def sealed(self) -> "SandboxActivity":
        """The draft as an immutable state."""
        object.__setattr__(self, "__class__", SandboxActivity)
        return self


class _Draft(SandboxActivity):
    __slots__ = ()
    __setattr__ = object.__setattr__  # with this, the interpreter stores attributes without a call
    __delattr__ = object.__delattr__

    def changed(self, **changes: Any) -> SandboxActivity:
        for name, value in changes.items():
            setattr(self, name, value)
        return self


_copy_fields: Final = copier(SandboxActivity)
