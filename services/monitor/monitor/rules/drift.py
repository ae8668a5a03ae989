"""The agent works on something other than its task. Only a model can find that."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import Facts, Observation
from monitor.rules.rule import MAX_EVIDENCE, Documentation, GuardianRule, Pattern, Thresholds, Unit


class DriftThresholds(Thresholds):
    """The number of calls after which a model is queried."""

    calls: Annotated[int, Unit("calls"), Field(ge=5)] = 60
    """Number of ended calls of an episode after which the model assesses whether the agent still works on its task."""


@dataclass(frozen=True, slots=True)
class Work:
    """The calls of an episode."""

    count: int = 0
    began: int = 0
    began_at: datetime | None = None
    evidence: tuple[UUID, ...] = ()
    """Ids of the events that ended the last calls."""


@dataclass(frozen=True)
class Drift(GuardianRule[Work, DriftThresholds]):
    """The agent has worked for a long time, and a model finds that it no longer works on its task."""

    name = "drift"
    order = 195
    thresholds = DriftThresholds
    part = Work
    folds_calls = True
    soft = True
    requires_assessor = True
    steps = MappingProxyType({"nudge": "calls"})
    documentation = Documentation(
        condition="`calls` calls have ended since the last message of a user, and then a model finds that the agent "
        "works on something other than its task. Evaluated only with `SANDHERD_ASSESSOR_MODEL`",
        avoids="the length of the work proves nothing: without a verdict of the model, no message is sent",
        source="length alone predicts no failure (arXiv 2604.02547). Advice by taxonomy raised the share of solved "
        "tasks (arXiv 2509.02360)",
    )

    def fold(self, part: Work, observation: Observation, _facts: Facts) -> Work:
        """Count a call."""
        call = observation.call
        if call is None:
            return part
        ids = (call.id,) if call.id is not None else ()
        evidence = (*part.evidence, *ids)[-MAX_EVIDENCE:]
        if part.began_at is None:
            return Work(1, call.number, call.at, evidence)
        return replace(part, count=part.count + 1, evidence=evidence)

    def pattern(self, part: Work) -> Pattern | None:
        """The calls of this episode, even below the threshold."""
        if part.began_at is None:
            return None
        summary = f"{part.count} calls since the last message of a user"
        return Pattern(self.name, "episode", part.began_at, part.began, part.count, summary, part.evidence)

    def evaluate(self, part: Work, _facts: Facts, _now: datetime, thresholds: DriftThresholds) -> Pattern | None:
        """The calls of this episode, if there are enough for an assessment."""
        return self.pattern(part) if part.count >= thresholds.calls else None

    def steering_text(self, _part: Work) -> str:
        """The message: the request to compare the work with the task."""
        return (
            "Your last calls do not seem to be about your task. Read the task and the user's messages once more, and "
            "compare them with what you are doing. Undo what was not asked for, and continue with the task; if you "
            "need something that the task does not mention, say what and why."
        )

    def is_repeated(self, _key: str, _part: Work, observation: Observation) -> bool | None:
        """Only the model can find what the agent does after the message, so each call counts as other work."""
        return None if observation.call is None else False

    def ignored_after(self, thresholds: DriftThresholds) -> int:
        """A number that is never reached, because no call shows the pattern again."""
        return thresholds.calls


RULE: Final = Drift()
