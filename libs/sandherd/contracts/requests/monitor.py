"""The request to the monitor for its view of one sandbox, and the reply."""

from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.events.monitor import InterventionOutcome, InterventionStep, SteeringStep
from sandherd.contracts.model import Count, Model, Moment, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.budgets import BudgetLine


class WatchedCall(Model):
    """A call in flight."""

    tool: str
    since: Moment
    waits: bool = False
    """Whether it is an approval, which waits for a user."""


class RuleProgress(Model):
    """A rule, and how far it is from its next step."""

    rule: str
    kind: Literal["housekeeping", "guardian"]
    state: Literal["active", "muted", "disabled"] = "active"
    muted_until: Moment | None = None
    """Until when it is muted; None also if it is muted until a user unmutes it."""
    disabled_reason: str | None = None
    """How it failed, if it did."""
    count: float | None = None
    """What it counts: repetitions of its pattern, or seconds of its condition; None if there is neither."""
    threshold: float | None = None
    """The count of the next step; None beyond the last."""
    next_step: SteeringStep | None = None
    """The step at that count; a housekeeping rule terminates."""
    summary: str = ""
    """Its pattern, in one sentence. It contains what the sandbox has published."""


class FindingView(Model):
    """A pattern that a rule finds at present."""

    rule: str
    since: Moment
    count: Count
    summary: str
    evidence: list[str] = Field(default_factory=list)
    """Ids of the events that it is based on."""


class InterventionView(Model):
    """An intervention."""

    number: Count
    rule: str
    step: InterventionStep
    decided_at: Moment
    received_at: Moment | None = None
    """When the agent received its message, or continued after its pause."""
    outcome: InterventionOutcome | None = None
    """None: it is not known yet."""
    outcome_at: Moment | None = None
    approval_id: str | None = None
    """The approval that a pause has requested."""
    evidence: list[str] = Field(default_factory=list)
    """Ids of the events that it is based on."""


class MonitorView(Model):
    """The monitor's view of a sandbox."""

    project: SafeName
    sandbox: SafeName
    task: SafeName | None = None
    as_of: Moment
    """Up to when all events are included."""
    phase: Literal["running", "paused", "stopping", "finished", "ended"]
    turn: Count = 0
    started_at: Moment
    episode_at: Moment | None = None
    """When a user last sent a message: what the agent did before is not a pattern any more."""
    last_sign_at: Moment
    last_work_at: Moment | None = None
    expires_at: Moment | None = None
    max_intervention: SteeringStep
    """The strongest step of guardian rules here."""
    steered_at: Moment | None = None
    """When the last intervention was decided."""
    next_after: Moment | None = None
    """When the cool-down ends; None if it has."""
    silent_for: Seconds = 0
    """How long it has published no event, in seconds."""
    calls: list[WatchedCall] = Field(default_factory=list)
    """Calls in flight, oldest first."""
    rules: list[RuleProgress] = Field(default_factory=list)
    findings: list[FindingView] = Field(default_factory=list)
    interventions: list[InterventionView] = Field(default_factory=list)
    """The last ones, oldest first."""
    spending: list[BudgetLine] | None = None
    """What its task has used of each kind, in all attempts, and the limits of its project; by summaries, which are some
    seconds old. None: the ledger can't be read at present, or it runs no task."""


class ShowSandbox(Request[MonitorView]):
    """Return the monitor's view of a sandbox, from memory."""

    Answer: ClassVar[type[BaseModel]] = MonitorView
    type: ClassVar[str] = "monitor.show"
    sandbox: SafeName
