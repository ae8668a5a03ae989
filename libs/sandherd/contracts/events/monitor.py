"""What the monitor says: what it found, what it decided, and what came of it."""

from typing import ClassVar, Literal

from pydantic import Field

from sandherd.contracts.events.base import EventData
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count, MicroDollars, Seconds

SteeringStep = Literal["nudge", "interrupt", "pause", "terminate"]


class MonitorEvent(EventData):
    """Said by the monitor; none of it is work of an agent."""

    counts_as_work: ClassVar[bool] = False


class Found(MonitorEvent):
    """A sandbox that a rule of the idle watch found."""

    rule: str
    age_seconds: Seconds
    """How long the condition has held."""
    limit_seconds: Seconds
    action: str = "terminate"


class MonitorIdleFound(Found):
    """Nothing has got on for too long: idle, stuck, finished or too old, as `rule` says."""

    type: ClassVar[str] = "monitor.idle_found"


class MonitorDeadFound(Found):
    """Neither a heartbeat nor an event for too long."""

    type: ClassVar[str] = "monitor.dead_found"


class MonitorFloodFound(Found):
    """It said so much within `limit_seconds` that it takes the room of all others in the stream."""

    type: ClassVar[str] = "monitor.flood_found"
    said_bytes: Count
    said_messages: Count | None = None
    said_junk: Count | None = None
    """How many of the messages could not be read as events."""


class MonitorGuardianAnalysed(MonitorEvent):
    """A guardian rule has looked at a sandbox and found something."""

    type: ClassVar[str] = "monitor.guardian_analysed"
    rule: str
    needs_steering: bool
    alignment_score: float | None = Field(default=None, ge=0, le=1)
    steering_type: str | None = None
    summary: str = ""
    evidence: list[str] = Field(default_factory=list)
    """Ids of the events that the finding rests on."""


class MonitorInterventionDecided(MonitorEvent):
    """A steering was decided and is on its way as a message."""

    type: ClassVar[str] = "monitor.intervention_decided"
    rule: str
    step: SteeringStep
    message_id: SafeName | None = None
    correlation_id: str
    intervention_number: Count = 1
    message: str


class MonitorInterventionOutcome(MonitorEvent):
    """What came of a steering."""

    type: ClassVar[str] = "monitor.intervention_outcome"
    correlation_id: str
    outcome: Literal["obeyed", "ignored", "undelivered", "finished"]


class MonitorConductorReported(MonitorEvent):
    """The state of the whole herd."""

    type: ClassVar[str] = "monitor.conductor_reported"
    status: str
    coherence_score: float = Field(ge=0, le=1)
    sandboxes: Count
    recommendations: list[str] = Field(default_factory=list)


class MonitorDuplicateFound(MonitorEvent):
    """Two sandboxes do the same work."""

    type: ClassVar[str] = "monitor.duplicate_found"
    other: SafeName
    similarity: float = Field(ge=0, le=1)


class MonitorConflictFound(MonitorEvent):
    """Two live sandboxes edit one file."""

    type: ClassVar[str] = "monitor.conflict_found"
    other: SafeName
    file_path: str


class MonitorBudgetExceeded(MonitorEvent):
    """A task has used more than it may."""

    type: ClassVar[str] = "monitor.budget_exceeded"
    budget: Literal["cost", "tokens", "turns", "wall_time"]
    limit: Count
    used: Count
    cost_micro_usd: MicroDollars | None = None
