"""The report of a replay of the monitor's rules over stored events."""

from typing import Annotated

from pydantic import ConfigDict, Field

from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.states import SteeringStep


class _Frozen(Model):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReplayedFinding(_Frozen):
    """The first time that the condition of a rule held for a pattern."""

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
    """Absent if it is not known: a replay can't show what the agent would have done after the intervention."""


class RuleQuality(_Frozen):
    """How well one rule finds the sessions that are labelled with its name."""

    rule: str
    sessions: Count
    """Number of sessions that are labelled with the rule."""
    found: Count
    missed: list[str] = Field(default_factory=list)
    """The labelled sessions in which the rule found nothing."""
    false_alarms: Count
    """Number of findings in healthy sessions."""
    delay_turns: list[int] = Field(default_factory=list)
    """For each found session: the turns between the label's event and the finding; 0 if the finding came first."""
    recall: Annotated[float, Field(ge=0, le=1)] | None = None
    """`found` divided by `sessions`; absent if no session is labelled with the rule."""


class ReplayQuality(_Frozen):
    """The quality of all rules, measured with a file of labels."""

    sessions: Count
    healthy: Count
    rules: list[RuleQuality]
    recall: Annotated[float, Field(ge=0, le=1)] | None = None
    """Number of labels that were found, divided by the number of all labels."""
    false_alarms: Count
    false_alarms_per_healthy: Annotated[float, Field(ge=0)] | None = None
    alarmed: list[str] = Field(default_factory=list)
    """The healthy sessions with a finding, each with the rules that found it."""


class ReplayReport(_Frozen):
    """What the rules find in stored events, and what was recorded when the events happened."""

    events: Count
    unreadable: Count = 0
    """Number of lines that are not events."""
    sandboxes: Count
    findings: list[ReplayedFinding]
    interventions: list[ReplayedIntervention]
    recorded_findings: list[ReplayedFinding]
    recorded_interventions: list[ReplayedIntervention]
    failed_rules: dict[str, list[str]] = Field(default_factory=dict)
    """For each sandbox with failed rules: the name of each rule, and the error that it raised."""
    quality: ReplayQuality | None = None
