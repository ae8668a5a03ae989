"""What a replay of the monitor's rules over stored events reports."""

from typing import Annotated

from pydantic import ConfigDict, Field

from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.states import SteeringStep


class _Frozen(Model):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReplayedFinding(_Frozen):
    """A rule's condition held, for the first time for this pattern."""

    project: str
    sandbox: str
    rule: str
    kind: str
    """`housekeeping` or `guardian`."""
    at: Moment
    event: Count
    """The number of the event after which it was found, from 1."""
    turn: Count
    step: SteeringStep | None = None
    """The step that the pattern's count reaches; absent for housekeeping rules."""
    count: Count = 0
    summary: str = ""
    evidence: list[str] = Field(default_factory=list)
    """Ids of the events that it is based on."""


class ReplayedIntervention(_Frozen):
    """An intervention: what the replayed rules decide, or what was recorded."""

    project: str
    sandbox: str
    rule: str
    step: SteeringStep
    at: Moment
    event: Count
    turn: Count
    outcome: str | None = None
    """Absent if it is not known: what the agent would have done after it can't be replayed."""


class RuleQuality(_Frozen):
    """How well one rule finds the sessions that are labelled with it."""

    rule: str
    sessions: Count
    """Number of sessions that are labelled with it."""
    found: Count
    missed: list[str] = Field(default_factory=list)
    """The sessions in which it found nothing."""
    false_alarms: Count
    """Findings in healthy sessions."""
    delay_turns: list[int] = Field(default_factory=list)
    """For each session that it found: turns between the label's event and the finding; 0 if it was found before."""
    recall: Annotated[float, Field(ge=0, le=1)] | None = None
    """Found sessions by labelled ones; absent if there are none."""


class ReplayQuality(_Frozen):
    """The quality of all rules, by a file of labels."""

    sessions: Count
    healthy: Count
    rules: list[RuleQuality]
    recall: Annotated[float, Field(ge=0, le=1)] | None = None
    """Labels that were found, by all labels."""
    false_alarms: Count
    false_alarms_per_healthy: Annotated[float, Field(ge=0)] | None = None
    alarmed: list[str] = Field(default_factory=list)
    """The healthy sessions with a finding, each with its rules."""


class ReplayReport(_Frozen):
    """What the rules find in stored events, beside what was recorded when they happened."""

    events: Count
    unreadable: Count = 0
    """Lines that are no events."""
    sandboxes: Count
    findings: list[ReplayedFinding]
    interventions: list[ReplayedIntervention]
    recorded_findings: list[ReplayedFinding]
    recorded_interventions: list[ReplayedIntervention]
    failed_rules: dict[str, list[str]] = Field(default_factory=dict)
    """The rules that raised an error, by sandbox, and how."""
    quality: ReplayQuality | None = None
