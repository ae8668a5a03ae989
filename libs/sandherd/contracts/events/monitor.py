"""Events of the monitor: its findings, its decisions, and their outcomes."""

from typing import ClassVar, Literal
from uuid import UUID

from pydantic import Field

from sandherd.contracts.budgets import BudgetKind, BudgetLimits, BudgetScope, BudgetWindow
from sandherd.contracts.events.base import CommandRefusal, Emitter, EventData, Tone
from sandherd.contracts.model import Count, MicroDollars, Moment, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import NotificationKind

SteeringStep = Literal["observe", "nudge", "interrupt", "pause", "terminate"]
"""The steps of the intervention ladder, weakest first. `observe` publishes what is found, and sends nothing."""
InterventionStep = Literal["nudge", "interrupt", "pause", "terminate"]
"""The steps that do something."""
InterventionOutcome = Literal["obeyed", "recovered", "ignored", "undelivered", "finished"]
"""What an intervention led to. In its event, `recovered` is `obeyed` with the field `recovered`."""


class MonitorEvent(EventData):
    """Published by the monitor; it is not work of an agent."""

    emitted_by: ClassVar[Emitter] = "monitor"
    counts_as_work: ClassVar[bool] = False


class IdleFinding(MonitorEvent):
    """A sandbox that matches a rule of the idle watch."""

    rule: str
    age_seconds: Seconds
    """How long the condition has held."""
    limit_seconds: Seconds
    action: str = "terminate"


class MonitorIdleFound(IdleFinding):
    """The sandbox made no progress for too long, or exists for too long: idle, stuck, finished or too old (`rule`)."""

    type: ClassVar[str] = "monitor.idle_found"


class MonitorDeadFound(IdleFinding):
    """The sandbox published neither a heartbeat nor another event for too long."""

    type: ClassVar[str] = "monitor.dead_found"


class MonitorFloodFound(IdleFinding):
    """The sandbox published so much within `limit_seconds` that it uses up the stream's space for all others."""

    type: ClassVar[str] = "monitor.flood_found"
    said_bytes: Count
    said_messages: Count | None = None
    said_junk: Count | None = None
    """How many of the messages could not be read as events."""


class MonitorGuardianAnalysed(MonitorEvent):
    """A guardian rule has analysed a sandbox and found something."""

    type: ClassVar[str] = "monitor.guardian_analysed"
    rule: str
    needs_steering: bool
    alignment_score: float | None = Field(default=None, ge=0, le=1)
    steering_type: str | None = None
    summary: str = ""
    evidence: list[str] = Field(default_factory=list)
    """Ids of the events that the finding is based on."""
    pattern: str | None = None
    """The key of the pattern, by which the rule recognises it."""
    pattern_began: Count | None = None
    """The sequence number of its first event, in the stream EVENTS."""


class MonitorInterventionDecided(MonitorEvent):
    """An intervention was decided: a message to the agent, a pause of its sandbox, or the sandbox's end."""

    type: ClassVar[str] = "monitor.intervention_decided"
    rule: str
    step: InterventionStep
    message_id: SafeName | None = None
    """The message that a nudge or an interrupt sends."""
    correlation_id: str
    intervention_number: Count = 1
    message: str
    evidence: list[str] | None = None
    """Ids of the events that it is based on."""
    pattern: str | None = None
    """The key of the pattern that it is to stop, by which the rule recognises it."""
    pattern_rule: str | None = None
    """The rule that recognises the pattern; None if it is the same rule."""
    approval_id: str | None = None
    """The approval that a pause requests from a user."""

    def summarize(self) -> str:
        return f"{self.rule}: {self.step}: {self.message}"


class MonitorInterventionOutcome(MonitorEvent):
    """The outcome of an intervention."""

    type: ClassVar[str] = "monitor.intervention_outcome"
    correlation_id: str
    outcome: Literal["obeyed", "ignored", "undelivered", "finished"]
    recovered: bool | None = None
    """Whether it is `obeyed` because the pattern has been gone for ten turns; else the agent ended without it."""
    evidence: list[str] | None = None
    """Ids of the events that the outcome is based on."""


class MonitorRuleMuted(MonitorEvent):
    """A user has muted a guardian rule for this sandbox."""

    type: ClassVar[str] = "monitor.rule_muted"
    rule: str
    until: Moment | None = None
    """When it is evaluated again; None: when it is unmuted."""
    muted_by: str | None = None
    """Who muted it, as the command named them."""


class MonitorRuleUnmuted(MonitorEvent):
    """A muted rule is evaluated again for this sandbox."""

    type: ClassVar[str] = "monitor.rule_unmuted"
    rule: str
    unmuted_by: str | None = None
    """Who unmuted it, as the command named them."""


class MonitorRefused(CommandRefusal, MonitorEvent):
    """A command to the monitor was rejected: it is invalid, or there is no such rule or sandbox."""

    type: ClassVar[str] = "monitor.refused"
    closes_source: ClassVar[bool] = True


class MonitorNotificationPublished(MonitorEvent):
    """Something that a user should know: the herd recovered from a failure, or an intervention had no effect."""

    type: ClassVar[str] = "monitor.notification_published"
    tone: ClassVar[Tone | None] = "attention"
    kind: NotificationKind
    """What it is about: `recovery`, an attempt failed and is retried; `intervention_failed`, an agent ignored the
    guardian or could not be reached."""
    message: str
    """What happened, in one sentence."""
    cause_id: UUID
    """The id of the event that says so; there is one notification for each."""
    cause_type: str
    """The type of that event."""

    def summarize(self) -> str:
        return f"{self.kind}: {self.message}"


class MonitorConductorReported(MonitorEvent):
    """The state of the whole herd."""

    type: ClassVar[str] = "monitor.conductor_reported"
    reserved: ClassVar[bool] = True
    status: str
    coherence_score: float = Field(ge=0, le=1)
    sandboxes: Count
    recommendations: list[str] = Field(default_factory=list)


class MonitorDuplicateFound(MonitorEvent):
    """Two sandboxes do the same work."""

    type: ClassVar[str] = "monitor.duplicate_found"
    reserved: ClassVar[bool] = True
    other: SafeName
    similarity: float = Field(ge=0, le=1)


class MonitorConflictFound(MonitorEvent):
    """Two live sandboxes edit the same file."""

    type: ClassVar[str] = "monitor.conflict_found"
    reserved: ClassVar[bool] = True
    other: SafeName
    file_path: str


class BudgetEvent(MonitorEvent):
    """About a budget. Each is published once, by a source of its own."""

    closes_source_alone: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "attention"
    scope: BudgetScope = Field(default="task", exclude_if=lambda scope: scope == "task")
    """Whose budget it is: that of the task `taskid`, of the project, or of the herd."""
    window: BudgetWindow = Field(default="total", exclude_if=lambda window: window == "total")
    """`total`: all attempts of a task. `day` and `month`: the last 24 hours, and the last 30 days, in whole hours."""
    budget: BudgetKind
    limit: Count
    """The limit that was reached, in the unit of the kind: micro-dollars, tokens, turns, seconds."""
    used: Count
    """What was used, in the same unit."""
    cost_micro_usd: MicroDollars | None = None
    """What it has cost, as far as it is known, in the same window."""

    def summarize(self) -> str:
        window = "" if self.window == "total" else f" of a {self.window}"
        return f"{self.scope}: {self.used} of {self.limit} ({self.budget}{window})"


class MonitorBudgetWarned(BudgetEvent):
    """Four fifths of a budget are used."""

    type: ClassVar[str] = "monitor.budget_warned"


class MonitorBudgetExceeded(BudgetEvent):
    """A budget is exceeded: its agents are asked to end their work, and stopped after a time; no task begins."""

    type: ClassVar[str] = "monitor.budget_exceeded"
    tone: ClassVar[Tone | None] = "failure"


class MonitorBudgetGranted(MonitorEvent):
    """A user has granted a task more than its budget."""

    type: ClassVar[str] = "monitor.budget_granted"
    closes_source_alone: ClassVar[bool] = True
    grant: SafeName
    """The name of the grant, unique in its task."""
    more: BudgetLimits
    """What was added to its budget."""
    granted_by: str | None = None
    """Who granted it, as the request named them."""

    def summarize(self) -> str:
        more = ", ".join(f"{name} {value}" for name, value in self.more.model_dump(exclude_none=True).items())
        return f"{more} by {self.granted_by}" if self.granted_by else more
