"""The agent continues what an intervention was to stop."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import Facts, Observation
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from sandherd.contracts.events.monitor import MonitorInterventionDecided, MonitorInterventionOutcome

_MAX_TEXT_LENGTH: Final = 600


class SteeringIgnoredThresholds(Thresholds):
    """The number of ignored interventions after which the next step follows."""

    after: Annotated[int, Unit("interventions"), Field(ge=1)] = 1
    """Number of consecutive interventions against one pattern that were ignored."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """The last intervention, and the number of consecutive ignored ones against the same pattern."""

    rule: str = ""
    pattern: str = ""
    text: str = ""
    correlation: str = ""
    """The correlation of the intervention whose outcome is not known yet; empty if there is none."""
    count: int = 0
    since: datetime | None = None
    began: int = 0
    ignored: bool = False
    evidence: tuple[UUID, ...] = ()
    """Ids of the events that show the pattern after the intervention."""


@dataclass(frozen=True)
class SteeringIgnored(GuardianRule[Ignored, SteeringIgnoredThresholds]):
    """The agent has ignored an intervention.

    This means that after its delivery, the pattern has occurred as often as its rule requires. The next step follows,
    by the ladder of the rule that found the pattern.
    """

    name = "steering_ignored"
    order = 90
    thresholds = SteeringIgnoredThresholds
    part = Ignored
    reads = (MonitorInterventionDecided, MonitorInterventionOutcome)
    steps = MappingProxyType({"interrupt": "after", "pause": "after", "terminate": "after"})
    documentation = Documentation(
        condition="`after` consecutive interventions against one pattern had the outcome `ignored`: the next step of "
        "the pattern's own rule is taken",
        avoids="what the agent did before it received the message does not count",
        source="agents that received hundreds of warnings without a stronger step, and continued",
    )

    def fold(self, part: Ignored, observation: Observation, _facts: Facts) -> Ignored:
        """Record an intervention or its outcome. An outcome other than `ignored` begins the count again."""
        event = observation.event
        match event.data:
            case MonitorInterventionDecided() as data:
                return _after_decision(part, data)
            case MonitorInterventionOutcome() as data if data.correlation_id == part.correlation:
                if data.outcome != "ignored":
                    return Ignored()
                ids = tuple(UUID(id) for id in data.evidence or ())
                return replace(
                    part,
                    correlation="",
                    count=part.count + 1,
                    ignored=True,
                    since=event.at,
                    began=event.number,
                    evidence=ids,
                )
            case _:
                return part

    def pattern(self, part: Ignored) -> Pattern | None:
        """The pattern that the agent continues."""
        if not part.ignored or part.since is None:
            return None
        summary = f"the agent continues what the rule {part.rule} found, after it received {part.count} interventions"
        return Pattern(
            self.name, part.pattern, part.since, part.began, part.count, summary, part.evidence, watched=part.rule
        )

    def evaluate(
        self, part: Ignored, _facts: Facts, _now: datetime, thresholds: SteeringIgnoredThresholds
    ) -> Pattern | None:
        """The pattern, once enough interventions were ignored."""
        return self.pattern(part) if part.count >= thresholds.after else None

    def steering_text(self, part: Ignored) -> str:
        """The message: the text of the earlier message, and that it still applies."""
        return (
            "You have received this message, and continue nevertheless. Stop what it describes now, and do something "
            "else; if nothing else is left, end the task and state what prevents it. The message was: " + part.text
        )

    def is_repeated(self, _key: str, _part: Ignored, _observation: Observation) -> bool | None:
        """The rule that found the pattern recognises it."""
        return None

    def ignored_after(self, thresholds: SteeringIgnoredThresholds) -> int:
        """Not used, because the rule that found the pattern determines when an intervention is ignored."""
        return thresholds.after


def _after_decision(part: Ignored, data: MonitorInterventionDecided) -> Ignored:
    if data.correlation_id == part.correlation:
        return part
    rule, pattern = data.pattern_rule or data.rule, data.pattern or ""
    is_same_pattern = (rule, pattern) == (part.rule, part.pattern)
    text = part.text if is_same_pattern else data.message[:_MAX_TEXT_LENGTH]
    count = part.count if is_same_pattern else 0
    return Ignored(rule=rule, pattern=pattern, text=text, correlation=data.correlation_id, count=count)


RULE: Final = SteeringIgnored()
