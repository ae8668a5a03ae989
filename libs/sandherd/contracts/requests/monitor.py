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
    """A rule, and its progress towards its next step."""

    rule: str
    kind: Literal["housekeeping", "guardian"]
    state: Literal["active", "muted", "disabled"] = "active"
    muted_until: Moment | None = None
    """When the rule is evaluated again, if it is muted; None also if it is muted until a user unmutes it."""
    disabled_reason: str | None = None
    """The error that disabled the rule, if it is disabled by one."""
    count: float | None = None
    """The present count: repetitions of the rule's pattern, or seconds for which its condition has held. None if there
    is neither."""
    threshold: float | None = None
    """The count at which the next step follows; None after the last step."""
    next_step: SteeringStep | None = None
    """The next step; for a housekeeping rule, `terminate`."""
    summary: str = ""
    """The pattern in one sentence, which contains texts from the sandbox."""


class FindingView(Model):
    """A pattern that a rule finds in a sandbox at present."""

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
    """All events up to this time are included."""
    phase: Literal["running", "paused", "stopping", "finished", "ended"]
    turn: Count = 0
    started_at: Moment
    episode_at: Moment | None = None
    """When a user last sent a message. Actions of the agent before it no longer count for a pattern."""
    last_sign_at: Moment
    last_work_at: Moment | None = None
    expires_at: Moment | None = None
    max_intervention: SteeringStep
    """The strongest step of guardian rules in this sandbox."""
    steered_at: Moment | None = None
    """When the last intervention was decided."""
    next_after: Moment | None = None
    """When the cool-down after the last intervention ends; None if it has ended."""
    silent_for: Seconds = 0
    """For how many seconds it has not published an event."""
    calls: list[WatchedCall] = Field(default_factory=list)
    """Calls in flight, oldest first."""
    rules: list[RuleProgress] = Field(default_factory=list)
    findings: list[FindingView] = Field(default_factory=list)
    interventions: list[InterventionView] = Field(default_factory=list)
    """The last interventions, oldest first."""
    spending: list[BudgetLine] | None = None
    """What the task has used of each kind in all attempts, and the limits of its project. The values are from
    summaries, which are some seconds old. None: the ledger can't be read at present, or the sandbox runs no task."""


class ShowSandbox(Request[MonitorView]):
    """Return the monitor's view of a sandbox, which it has in memory."""

    Answer: ClassVar[type[BaseModel]] = MonitorView
    type: ClassVar[str] = "monitor.show"
    sandbox: SafeName
