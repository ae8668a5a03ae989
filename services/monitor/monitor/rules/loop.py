"""The agent repeats one call."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Facts, Observation
from monitor.normalisation import tool_label
from monitor.repeated_calls import (
    MAX_GAP,
    RepeatedCall,
    RepeatedCalls,
    is_again,
    is_parallel,
    new_row,
    repeated_row,
)
from monitor.rules.rule import Documentation, GuardianRule, Pattern, SettingReference, Thresholds, Unit

_POLL_DISCOUNT: Final = 6
"""The difference between the default thresholds `polls` and `repeats`."""


class LoopThresholds(Thresholds):
    """The numbers of equal calls that are a loop."""

    repeats: Annotated[int, Unit("calls"), SettingReference("loop_repeats"), Field(ge=2)] = 4
    """Number of equal calls with equal results. A message after which the pattern occurs this often counts as
    `ignored`."""
    interrupt_at: Annotated[int, Unit("calls"), Field(ge=2)] = 8
    """At this number the agent is interrupted."""
    pause_at: Annotated[int, Unit("calls"), Field(ge=2)] = 12
    """At this number the sandbox is paused and an approval is requested."""
    polls: Annotated[int, Unit("calls"), Field(ge=2)] = 10
    """Number of equal polls with equal results that has the same effect as `repeats` calls. Each further poll has the
    effect of one call."""


@dataclass(frozen=True)
class Loop(GuardianRule[RepeatedCalls, LoopThresholds]):
    """The agent repeats a call, and gets the same result each time. There may be other calls in between."""

    name = "loop"
    order = 100
    thresholds = LoopThresholds
    part = RepeatedCalls
    folds_calls = True
    steps = MappingProxyType({"nudge": "repeats", "interrupt": "interrupt_at", "pause": "pause_at"})
    documentation = Documentation(
        condition="the same tool is called with the same input and returns the same result, `repeats` times, with at "
        f"most {MAX_GAP - 1} other calls between two of them. Inputs are compared without descriptions and timeouts; "
        "results without times, durations, process ids, addresses, temporary paths, hashes and ANSI sequences. Calls "
        "of different sub-agents are never equal",
        avoids="the count begins again after another result, and after a new content (edit and test). Equal calls of "
        "one response count once. A poll has to be repeated `polls` times. Calls that an outage, a denial or an "
        "interrupt prevented do not count",
        source="OpenHands' stuck detector also needs four calls, but does not find a loop with a time stamp in its "
        "results, or with another call in between. OpenClaw and OpenHands also use ten for polls",
    )

    def fold(self, part: RepeatedCalls, observation: Observation, facts: Facts) -> RepeatedCalls:
        """Count a repeated call, or add a row for a new call."""
        call = observation.call
        if call is None or not call.is_executed:
            return part
        row = part.row(call.digest)
        if row is None or (row.result, row.edits) != (call.result, facts.new_contents):
            return part.with_row(new_row(part, call, facts.new_contents), call)
        return part if is_parallel(row, call) else part.with_row(repeated_row(part, row, call), call)

    def pattern(self, part: RepeatedCalls) -> Pattern | None:
        """The call that was repeated most often."""
        row = _top_row(part)
        return None if row is None else self._pattern(row)

    def _pattern(self, row: RepeatedCall) -> Pattern:
        label = tool_label(row.tool)
        summary = f"{label}: the same call with the same result, {row.count} times{_in_a_row_text(row)}"
        return Pattern(self.name, row.key, row.began_at, row.began, row.count, summary, row.evidence)

    def evaluate(
        self, part: RepeatedCalls, _facts: Facts, _now: datetime, thresholds: LoopThresholds
    ) -> Pattern | None:
        """The call that was repeated most often, if that is a loop. Polls count less."""
        if part.top_count < thresholds.repeats:
            return None
        counts = [(_effective_count(row, thresholds), row) for row in part.rows]
        count, row = max(reversed(counts), key=lambda pair: pair[0])
        return replace(self._pattern(row), count=count) if count >= thresholds.repeats else None

    def steering_text(self, part: RepeatedCalls) -> str:
        """The message: what the agent repeats, and what to do instead."""
        row = _top_row(part)
        times = "several times" if row is None else f"{row.count} times{_in_a_row_text(row)}"
        tool = "the same tool" if row is None else tool_label(row.tool)
        return (
            f"You have called {tool} {times} with the same input, and the result was the same each time. Another "
            "identical call will not change it. Stop and read that result: say what it tells you, then do something "
            "else - another input, another tool, or a smaller step that shows why. If nothing else is left, end the "
            "task and say what stands in the way."
        )

    def is_repeated(self, key: str, part: RepeatedCalls, observation: Observation) -> bool | None:
        """The same call with the same result shows the pattern.

        It has stopped if more calls have passed than between two repetitions.
        """
        return is_again(part, key, observation.call)

    def ignored_after(self, thresholds: LoopThresholds) -> int:
        """The number of calls that is a loop."""
        return thresholds.repeats


def _top_row(part: RepeatedCalls) -> RepeatedCall | None:
    """The row that was repeated most often. Polls count less, by the default thresholds."""
    return max(reversed(part.rows), key=lambda row: row.count - (_POLL_DISCOUNT if row.is_poll else 0), default=None)


def _effective_count(row: RepeatedCall, thresholds: LoopThresholds) -> int:
    """The count that is compared with the thresholds. Polls count less."""
    return max(0, row.count - max(0, thresholds.polls - thresholds.repeats)) if row.is_poll else row.count


def _in_a_row_text(row: RepeatedCall) -> str:
    return " in a row" if row.gap == 1 else ""


RULE: Final = Loop()
