"""Events of the monitor: its findings, its decisions, and their outcomes."""

from typing import Annotated, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from sandherd.contracts.budgets import BudgetKind, BudgetLimits, BudgetScope, BudgetWindow, amount_text
from sandherd.contracts.events.base import CommandRefusal, Emitter, EventData, Tone
from sandherd.contracts.model import Count, MicroDollars, Moment, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import NotificationKind
from sandherd.contracts.states import SteeringStep as SteeringStep  # noqa: PLC0414  # defined where no pydantic is needed

InterventionStep = Literal["nudge", "interrupt", "pause", "terminate"]
"""The steps of an intervention, without `observe`."""
InterventionOutcome = Literal["obeyed", "recovered", "ignored", "undelivered", "finished"]
"""The outcome of an intervention. Its event shows `recovered` as `obeyed`, with the field `recovered`."""
ConflictSeverity = Literal["file", "lines", "merge"]
"""`file`: two sandboxes edit the same file; `lines`: they edit the same lines of it; `merge`: a trial merge of their
branches has conflicts."""
AssessmentVerdict = Literal["at_fault", "working", "unsure"]
AssessmentFailure = Literal[
    "no_evidence", "invalid_answer", "unavailable", "refused", "timed_out", "no_history", "no_allowance"
]
"""Why the model has given no verdict about a finding."""
ConductorFindingKind = Literal["conflict", "duplicate", "dependency"]
DependencyCause = Literal["base", "task"]
"""What changed: the base of the branch, or a task that the sandbox's task depends on or resumes."""
LineRange = Annotated[list[Count], Field(min_length=2, max_length=2)]
"""The first and the last line, from 1."""


class MonitorEvent(EventData):
    """An event of the monitor. It is not work of an agent."""

    emitted_by: ClassVar[Emitter] = "monitor"
    counts_as_work: ClassVar[bool] = False


class IdleFinding(MonitorEvent):
    """A sandbox matches a rule of the idle watch."""

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
    """The key by which the rule recognises the pattern."""
    pattern_began: Count | None = None
    """The sequence number of the pattern's first event in the stream EVENTS."""


class MonitorFindingAssessed(MonitorEvent):
    """A model has assessed a soft finding of a guardian rule, or could not. Without a verdict, the finding remains."""

    type: ClassVar[str] = "monitor.finding_assessed"
    rule: str
    verdict: AssessmentVerdict | None = None
    """`at_fault` confirms the finding; `working` drops it until the next message of a user. Absent: there is no
    verdict."""
    failure: AssessmentFailure | None = None
    """Why there is no verdict. `no_evidence`: the model cited no existing event; `invalid_answer`: its response was not
    an answer; `unavailable`, `refused`, `timed_out`: the model was unavailable, refused the request, or responded too
    late; `no_history`: the events could not be read; `no_allowance`: the model's tokens for the day are used up."""
    evidence: list[str] = Field(default_factory=list)
    """Ids of the events that the verdict is based on."""
    model: str
    tokens: Count = 0
    """Number of input and output tokens."""
    through: Count = 0
    """The sequence of the last event of the agent that the verdict is based on. The next assessment of this rule begins
    after it. 0 if there is no verdict."""

    def summarize(self) -> str:
        return f"{self.rule}: {self.verdict or self.failure}"


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
    """Ids of the events that the decision is based on."""
    pattern: str | None = None
    """The key by which the rule recognises the pattern that the intervention is to stop."""
    pattern_rule: str | None = None
    """The rule that recognises the pattern; None if it is `rule`."""
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
    """Whether the outcome is `obeyed` because the pattern has not occurred for ten turns. Otherwise the agent ended
    without it."""
    evidence: list[str] | None = None
    """Ids of the events that the outcome is based on."""


class MonitorRuleMuted(MonitorEvent):
    """A user has muted a guardian rule for this sandbox."""

    type: ClassVar[str] = "monitor.rule_muted"
    rule: str
    until: Moment | None = None
    """When the rule is evaluated again; None: when a user unmutes it."""
    muted_by: str | None = None
    """Who muted the rule, according to the command."""


class MonitorRuleUnmuted(MonitorEvent):
    """A muted rule is evaluated again for this sandbox."""

    type: ClassVar[str] = "monitor.rule_unmuted"
    rule: str
    unmuted_by: str | None = None
    """Who unmuted the rule, according to the command."""


class MonitorRefused(CommandRefusal, MonitorEvent):
    """A command to the monitor was rejected: it is invalid, or there is no such rule or sandbox."""

    type: ClassVar[str] = "monitor.refused"
    closes_source: ClassVar[bool] = True


class MonitorNotificationPublished(MonitorEvent):
    """A notification for users: for example, an attempt failed and is retried, or an intervention had no effect."""

    type: ClassVar[str] = "monitor.notification_published"
    tone: ClassVar[Tone | None] = "attention"
    kind: NotificationKind
    """`recovery`: an attempt failed and is retried; `intervention_failed`: an agent ignored the guardian or could not
    be reached; `coordination`: the conductor asks which of two sandboxes is to continue."""
    message: str
    """What happened, in one sentence."""
    cause_id: UUID
    """The id of the event that the notification is about. There is one notification for each such event."""
    cause_type: str
    """The type of the event with the id `cause_id`."""

    def summarize(self) -> str:
        return f"{self.kind}: {self.message}"


class MonitorConductorReported(MonitorEvent):
    """How much the live sandboxes of a project hinder each other. Published when it changes, at most once a minute."""

    type: ClassVar[str] = "monitor.conductor_reported"
    status: str
    """`coherent`, `strained` or `conflicted`."""
    coherence_score: float = Field(ge=0, le=1)
    """1 if no sandbox is in an open finding; docs/conductor.md has the formula."""
    sandboxes: Count
    recommendations: list[str] = Field(default_factory=list)
    """What a user can do."""
    reasons: list[str] = Field(default_factory=list, exclude_if=lambda reasons: not reasons)
    """Why the score is not 1: the open findings, the heaviest first."""
    conflicts: Count = Field(default=0, exclude_if=lambda count: not count)
    """Number of open conflicts about files, each between two sandboxes."""
    duplicates: Count = Field(default=0, exclude_if=lambda count: not count)
    """Number of open findings of duplicate tasks."""
    dependencies: Count = Field(default=0, exclude_if=lambda count: not count)
    """Number of open findings that something which a task builds on has changed."""

    def summarize(self) -> str:
        return f"{self.status} ({self.coherence_score:.2f}): {'; '.join(self.reasons) or 'no findings'}"


class MonitorDuplicateFound(MonitorEvent):
    """The sandbox seems to do the same work as another one, which began earlier."""

    type: ClassVar[str] = "monitor.duplicate_found"
    tone: ClassVar[Tone | None] = "attention"
    other: SafeName
    """The sandbox that began earlier."""
    similarity: float = Field(ge=0, le=1)
    """The weighted similarity of titles and edited files."""
    other_task: SafeName | None = None
    """The task of the other sandbox."""
    finding_id: UUID | None = None
    """Identifies the finding in later events about it."""

    def summarize(self) -> str:
        return f"the same as {self.other} ({self.similarity:.2f})"


class MonitorConflictFound(MonitorEvent):
    """The sandbox and another live one, which began earlier, edit the same file.

    It is published again if the severity rises.
    """

    type: ClassVar[str] = "monitor.conflict_found"
    tone: ClassVar[Tone | None] = "attention"
    other: SafeName
    """The sandbox that began earlier."""
    file_path: str
    """The file, relative to the work tree."""
    severity: ConflictSeverity | None = None
    """`file`: both edit the file; `lines`: they edit overlapping lines; `merge`: a trial merge of their branches has a
    conflict in the file."""
    lines: LineRange | None = None
    """The first and the last of the lines that overlap with those of the other sandbox."""
    other_lines: LineRange | None = None
    """The first and the last of the overlapping lines in the file of the other sandbox."""
    finding_id: UUID | None = None
    """Identifies the finding in later events about it."""

    def summarize(self) -> str:
        return f"{self.file_path} with {self.other}{f' ({self.severity})' if self.severity else ''}"


class MonitorDependencyChanged(MonitorEvent):
    """Something that the sandbox's task builds on has changed since the sandbox began."""

    type: ClassVar[str] = "monitor.dependency_changed"
    tone: ClassVar[Tone | None] = "attention"
    cause: DependencyCause
    """`base`: the base of its branch; `task`: a task that it depends on or resumes."""
    changed: str
    """The branch or task that has changed."""
    paths: Annotated[list[str], Field(max_length=100)] = Field(default_factory=list)
    """The changed files; those that the sandbox edits come first."""
    finding_id: UUID
    """Identifies the finding in later events about it."""

    def summarize(self) -> str:
        return f"{self.changed} in {', '.join(self.paths[:3])}"


class MonitorFindingWithdrawn(MonitorEvent):
    """A finding of the Conductor no longer holds."""

    type: ClassVar[str] = "monitor.finding_withdrawn"
    finding_id: UUID
    """The id of the finding."""
    finding_type: str
    """The type of the event that published it."""
    other: str
    """The sandbox, task or branch that the finding named."""
    reason: Literal["resolved", "finished", "ended"]
    """`resolved`: the finding no longer holds; `finished`: an agent has ended; `ended`: a sandbox has ended."""

    def summarize(self) -> str:
        return f"{self.finding_type} with {self.other}: {self.reason}"


class BudgetEvent(MonitorEvent):
    """An event about a budget. Each is published once, and is the only event of its source."""

    closes_source_alone: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "attention"
    scope: BudgetScope = Field(default="task", exclude_if=lambda scope: scope == "task")
    """Whose budget it is: that of the task `taskid`, of the project, or of the herd."""
    window: BudgetWindow = Field(default="total", exclude_if=lambda window: window == "total")
    """`total`: all attempts of a task; `day`: the last 24 hours; `month`: the last 30 days, in whole hours."""
    budget: BudgetKind
    limit: Count
    """The limit that was reached, in the unit of the kind: micro-dollars, tokens, turns, seconds."""
    used: Count
    """The used amount, in the same unit."""
    cost_micro_usd: MicroDollars | None = None
    """The cost in the same window, as far as it is known."""

    def summarize(self) -> str:
        window = "" if self.window == "total" else f" of a {self.window}"
        used, limit = (amount_text(self.budget, amount) for amount in (self.used, self.limit))
        return f"{self.budget} of the {self.scope}{window}: {used} of {limit}"


class MonitorBudgetWarned(BudgetEvent):
    """Four fifths of a budget are used."""

    type: ClassVar[str] = "monitor.budget_warned"


class MonitorBudgetExceeded(BudgetEvent):
    """A budget is exceeded: the agents are asked to end their work, and stopped after a time; no task begins."""

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
    """Who granted it, according to the request."""

    def summarize(self) -> str:
        more = ", ".join(f"{name} {value}" for name, value in self.more.model_dump(exclude_none=True).items())
        return f"{more} by {self.granted_by}" if self.granted_by else more
