"""The agent repeats one call, whose result differs each time."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation
from monitor.normalisation import tool_label
from monitor.repeated_calls import (
    MAX_GAP,
    RepeatedCall,
    RepeatedCalls,
    is_again,
    is_parallel,
    is_wait,
    new_row,
    repeated_row,
)
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit


class VariedThresholds(Thresholds):
    """The number of repetitions of a call that is acted upon."""

    repeats: Annotated[int, Unit("calls"), Field(ge=2)] = 10
    """Number of equal calls, each with another result than the one before. A message after which the pattern occurs
    this often counts as `ignored`."""


@dataclass(frozen=True)
class RepeatVaried(GuardianRule[RepeatedCalls, VariedThresholds]):
    """The agent repeats a call whose results differ, perhaps in the hope of a better one."""

    name = "repeat_varied"
    order = 180
    thresholds = VariedThresholds
    part = RepeatedCalls
    folds_calls = True
    steps = MappingProxyType({"nudge": "repeats"})
    documentation = Documentation(
        condition="the same tool is called with the same input `repeats` times, and each result differs from the "
        f"previous one, with at most {MAX_GAP - 1} other calls between two of them",
        avoids="the count begins again after a new content, and after a result with more lines than all before (a "
        "growing log). Polls do not count. The only step is a message",
        source="in one of 28 recorded sessions, an agent without a fault repeats a call with varying results. "
        "Therefore the threshold is ten, and there is no stronger step",
    )

    def fold(self, part: RepeatedCalls, observation: Observation, facts: Facts) -> RepeatedCalls:
        """Count an equal call with another result, or add a row. Polls have no row."""
        call = observation.call
        if call is None or not call.is_executed:
            return part
        row = part.row(call.digest)
        if call.polls or is_wait(call, part.ended_at):
            return part.with_row(None, call)
        if row is None or row.edits != facts.new_contents or call.lines > row.lines:
            return part.with_row(new_row(part, call, facts.new_contents), call)
        return part if is_parallel(row, call) else part.with_row(_with_varied_result(part, row, call), call)

    def pattern(self, part: RepeatedCalls) -> Pattern | None:
        """The call that was repeated most often."""
        row = part.top()
        if row is None:
            return None
        summary = f"{tool_label(row.tool)}: the same call, {row.count} times with differing results"
        return Pattern(self.name, f"{row.call} {row.edits}", row.began_at, row.began, row.count, summary, row.evidence)

    def evaluate(
        self, part: RepeatedCalls, _facts: Facts, _now: datetime, thresholds: VariedThresholds
    ) -> Pattern | None:
        """The call that was repeated most often, if that is often enough."""
        return self.pattern(part) if part.top_count >= thresholds.repeats else None

    def steering_text(self, part: RepeatedCalls) -> str:
        """The message: what the agent repeats, and what to do instead."""
        row = part.top()
        times = "many times" if row is None else f"{row.count} times"
        tool = "the same tool" if row is None else tool_label(row.tool)
        return (
            f"You have called {tool} {times} with the same input, and changed no file between. Its results differ, but "
            "none has brought you further. Say what you expect of another call. If you wait for something, wait longer "
            "between two calls; if the results are unstable, find out why instead of trying again."
        )

    def is_repeated(self, key: str, part: RepeatedCalls, observation: Observation) -> bool | None:
        """The same call shows the pattern. It has stopped if more calls have passed than between two repetitions."""
        return is_again(part, key, observation.call)

    def ignored_after(self, thresholds: VariedThresholds) -> int:
        """The number of calls that is the pattern."""
        return thresholds.repeats


def _with_varied_result(part: RepeatedCalls, row: RepeatedCall, call: EndedCall) -> RepeatedCall:
    """The row after another equal call, which is counted if its result is not the same as before."""
    if call.result != row.result:
        return repeated_row(part, row, call)
    return replace(row, last=call.number, place=part.place + 1)


RULE: Final = RepeatVaried()
