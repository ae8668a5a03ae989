"""The agent requests calls for which it has no permission."""

from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import Facts, Observation
from monitor.normalisation import tool_label
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit

_MAX_EVIDENCE: Final = 4


class DenialThresholds(Thresholds):
    """The numbers of denied calls that are acted upon."""

    consecutive: Annotated[int, Unit("calls"), Field(ge=1)] = 3
    """Number of denied calls in a row. A message after which the pattern occurs this often counts as `ignored`."""
    total: Annotated[int, Unit("calls"), Field(ge=1)] = 20
    """Number of denied calls of a sandbox, also if others were permitted in between."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The denied calls of a sandbox. Denied calls of one batch count once."""

    consecutive: int = 0
    total: int = 0
    batch: int = 0
    episode_at: datetime | None = None
    tool: str = ""
    began: int = 0
    began_at: datetime | None = None
    last: int = 0
    """The stream sequence of the last denied call that counted."""
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class Denials(GuardianRule[Denied, DenialThresholds]):
    """Calls are denied repeatedly. A user has to decide whether the agent needs the permission."""

    name = "denials"
    order = 140
    thresholds = DenialThresholds
    part = Denied
    folds_calls = True
    across_episodes = True
    steps = MappingProxyType({"pause": "consecutive"})
    documentation = Documentation(
        condition="a rule or a permission denied `consecutive` calls in a row, or `total` calls of the sandbox in all",
        avoids="a refusal by a user and an interrupt are not denials. Denied calls of one response count once. A "
        "message of a user resets the number of calls in a row, but not the total",
        source="the numbers of Claude's auto mode",
    )

    def fold(self, part: Denied, observation: Observation, facts: Facts) -> Denied:
        """Count a denied call; an executed one ends the row."""
        call = observation.call
        if call is None or call.outcome in {"refused", "cancelled", "outage"}:
            return part
        if call.outcome != "denied":
            return part if not part.consecutive else Denied(total=part.total, episode_at=part.episode_at)
        if part.episode_at != facts.episode_at:
            part = Denied(total=part.total, episode_at=facts.episode_at)
        if part.consecutive and part.batch == call.batch:
            return part
        return Denied(
            *(part.consecutive + 1, part.total + 1, call.batch, facts.episode_at, call.tool),
            began=part.began or call.number,
            began_at=part.began_at or call.at,
            last=call.number,
            evidence=(*part.evidence, *call.ids)[-_MAX_EVIDENCE:],
        )

    def pattern(self, part: Denied) -> Pattern | None:
        """The denied calls in a row, even below the threshold."""
        return self._pattern(part, part.consecutive)

    def _pattern(self, part: Denied, count: int) -> Pattern | None:
        if part.began_at is None:
            return None
        summary = f"{tool_label(part.tool)}: {part.consecutive} denied calls in a row, {part.total} in all"
        return Pattern(self.name, "denied", part.began_at, part.began, count, summary, part.evidence)

    def evaluate(self, part: Denied, facts: Facts, _now: datetime, thresholds: DenialThresholds) -> Pattern | None:
        """The denied calls, if there are enough of them in a row or in total."""
        if not part.consecutive or part.episode_at != facts.episode_at:
            return None
        if part.total >= thresholds.total:
            return self._pattern(part, max(part.consecutive, thresholds.consecutive))
        return self._pattern(part, part.consecutive) if part.consecutive >= thresholds.consecutive else None

    def steering_text(self, part: Denied) -> str:
        """The message: what was denied, and what to do instead."""
        return (
            f"{part.total} of your calls were denied, the last one of {tool_label(part.tool)}. You do not have the "
            "permission, and another way to the same effect is not permitted either. Continue with what you may do. "
            "If the task needs it, end the task and say which permission is missing, and what for."
        )

    def is_repeated(self, _key: str, part: Denied, observation: Observation) -> bool | None:
        """A denied call shows the pattern; an executed one does not."""
        call = observation.call
        if call is None or call.outcome in {"refused", "cancelled", "outage"}:
            return None
        if call.outcome == "denied":
            return True if part.last == call.number else None
        return False

    def ignored_after(self, thresholds: DenialThresholds) -> int:
        """As many denied calls as `consecutive`."""
        return thresholds.consecutive


RULE: Final = Denials()
