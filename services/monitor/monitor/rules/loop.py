"""The agent repeats one call."""

from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation
from monitor.rules.rule import (
    MAX_EVIDENCE,
    Documentation,
    GuardianRule,
    Pattern,
    SettingReference,
    Thresholds,
    Unit,
)


class LoopThresholds(Thresholds):
    """When a streak is a loop."""

    repeats: Annotated[int, Unit("calls"), SettingReference("loop_repeats"), Field(ge=2)] = 4
    """Equal calls with equal results in a row. As many after a message are needed to ignore it."""
    interrupt_at: Annotated[int, Unit("calls"), Field(ge=2)] = 8
    """As many interrupt the agent."""
    pause_at: Annotated[int, Unit("calls"), Field(ge=2)] = 12
    """As many pause it, and a user is asked."""


@dataclass(frozen=True, slots=True)
class Streak:
    """The same call with the same result, `count` times in a row. `began` is the stream sequence of the first one."""

    call: str = ""
    result: str = ""
    tool: str = ""
    began: int = 0
    began_at: datetime | None = None
    count: int = 0
    evidence: tuple[UUID, ...] = ()
    """Event ids of the last results, newest last."""


@dataclass(frozen=True)
class Loop(GuardianRule[Streak, LoopThresholds]):
    """The same call with the same result, again and again; any other call ends the streak, and obeys a nudge."""

    name = "loop"
    order = 100
    thresholds = LoopThresholds
    part = Streak
    folds_calls = True
    steps = MappingProxyType({"nudge": "repeats", "interrupt": "interrupt_at", "pause": "pause_at"})
    documentation = Documentation(
        condition="the same tool with the same input and the same result, `repeats` times in a row",
        avoids="a call that gets another result each time, such as a poll: it is no repetition; several events that "
        "report the end of one call count once",
        source="OpenHands' stuck detector, which also needs four",
    )

    def fold(self, part: Streak, observation: Observation, _facts: Facts) -> Streak:
        """One more equal call, or a new streak."""
        call = observation.call
        if call is None:
            return part
        evidence = (call.id,) if call.id else ()
        if (part.call, part.result) != (call.digest, call.result):
            return Streak(call.digest, call.result, call.tool, call.number, call.at, 1, evidence)
        last_ids = (*part.evidence, *evidence)[-MAX_EVIDENCE:]
        return Streak(part.call, part.result, part.tool, part.began, part.began_at, part.count + 1, last_ids)

    def pattern(self, part: Streak) -> Pattern | None:
        """The streak, however short."""
        if part.began_at is None:
            return None
        summary = f"{part.tool}: the same call with the same result, {part.count} times in a row"
        key = _key(part)
        return Pattern(self.name, key, part.began_at, part.began, part.count, summary, part.evidence)

    def judge(self, part: Streak, _facts: Facts, _now: datetime, thresholds: LoopThresholds) -> Pattern | None:
        """The streak, if it is long enough to be a loop."""
        return self.pattern(part) if part.count >= thresholds.repeats else None

    def steering_text(self, part: Streak) -> str:
        """What repeats, and what to do instead."""
        return (
            f"You have called {part.tool or 'the same tool'} {part.count} times in a row with the same input, and the "
            "result was the same each time. Another identical call will not change it. Stop and read that result: say "
            "what it tells you, then do something else - another input, another tool, or a smaller step that shows "
            "why. If nothing else is left, end the task and say what stands in the way."
        )

    def is_repeated(self, key: str, _part: Streak, observation: Observation) -> bool | None:
        """The same call with the same result is the pattern; any other call is not."""
        return None if observation.call is None else _key(observation.call) == key

    def ignored_after(self, thresholds: LoopThresholds) -> int:
        """As many calls as make a loop."""
        return thresholds.repeats


def _key(repeated: Streak | EndedCall) -> str:
    call = repeated.call if isinstance(repeated, Streak) else repeated.digest
    return f"{call} {repeated.result}"


RULE: Final = Loop()
