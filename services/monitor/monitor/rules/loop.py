"""The agent repeats one call."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Facts, Observation
from monitor.normalisation import tool_label
from monitor.repeated_calls import MAX_GAP, PAUSE, RepeatedCall, RepeatedCalls, first, is_again, is_parallel, repeated
from monitor.rules.rule import Documentation, GuardianRule, Pattern, SettingReference, Thresholds, Unit

_LESS: Final = 6


class LoopThresholds(Thresholds):
    """When repeated calls are a loop."""

    repeats: Annotated[int, Unit("calls"), SettingReference("loop_repeats"), Field(ge=2)] = 4
    """Equal calls with equal results. The same number after a message means `ignored`."""
    interrupt_at: Annotated[int, Unit("calls"), Field(ge=2)] = 8
    """At this number the agent is interrupted."""
    pause_at: Annotated[int, Unit("calls"), Field(ge=2)] = 12
    """At this number the sandbox is paused and an approval is requested."""
    polls: Annotated[int, Unit("calls"), Field(ge=2)] = 10
    """Equal calls with equal results, if the agent waits for something: this number counts as `repeats`, a further one
    as one more."""


@dataclass(frozen=True)
class Loop(GuardianRule[RepeatedCalls, LoopThresholds]):
    """The same call with the same result, again and again, also with other calls between."""

    name = "loop"
    order = 100
    thresholds = LoopThresholds
    part = RepeatedCalls
    folds_calls = True
    steps = MappingProxyType({"nudge": "repeats", "interrupt": "interrupt_at", "pause": "pause_at"})
    documentation = Documentation(
        condition="the same tool with the same input and the same result, `repeats` times, with at most "
        f"{MAX_GAP - 1} other calls between two of them; inputs are compared without descriptions and timeouts, "
        "results without times, durations, process ids, addresses, temporary paths, hashes and ANSI sequences; each "
        "sub-agent has its own calls",
        avoids="another result, and a file that gets a new content, begin again (a loop of edits and tests); calls of "
        "one response of the model count once; a poll, which is a call that is known to wait or to read the output of "
        f"something, or comes after a pause of {PAUSE:.0f} s or takes as long, has to be repeated `polls` times; calls "
        "that an outage, a denial or an interrupt prevented do not count",
        source="OpenHands' stuck detector also needs four, but a time stamp, or one other call, hides a loop from it; "
        "ten for polls is what OpenClaw and OpenHands arrived at",
    )

    def fold(self, part: RepeatedCalls, observation: Observation, facts: Facts) -> RepeatedCalls:
        """Count an equal call, or add a row."""
        call = observation.call
        if call is None or not call.is_executed:
            return part
        row = part.row(call.digest)
        if row is None or (row.result, row.edits) != (call.result, facts.new_contents):
            return part.with_row(first(part, call, facts.new_contents), call)
        return part if is_parallel(row, call) else part.with_row(repeated(part, row, call), call)

    def pattern(self, part: RepeatedCalls) -> Pattern | None:
        """The call that was repeated most often."""
        row = _top(part)
        return None if row is None else self._pattern(row)

    def _pattern(self, row: RepeatedCall) -> Pattern:
        label = tool_label(row.tool)
        summary = f"{label}: the same call with the same result, {row.count} times{_in_a_row(row)}"
        return Pattern(self.name, row.key, row.began_at, row.began, row.count, summary, row.evidence)

    def evaluate(
        self, part: RepeatedCalls, _facts: Facts, _now: datetime, thresholds: LoopThresholds
    ) -> Pattern | None:
        """The call that was repeated most often, if that is a loop. Polls count less."""
        if part.top_count < thresholds.repeats:
            return None
        counts = [(_count(row, thresholds), row) for row in part.rows]
        count, row = max(reversed(counts), key=lambda one: one[0])
        return replace(self._pattern(row), count=count) if count >= thresholds.repeats else None

    def steering_text(self, part: RepeatedCalls) -> str:
        """What repeats, and what to do instead."""
        row = _top(part)
        times = "several times" if row is None else f"{row.count} times{_in_a_row(row)}"
        tool = "the same tool" if row is None else tool_label(row.tool)
        return (
            f"You have called {tool} {times} with the same input, and the result was the same each time. Another "
            "identical call will not change it. Stop and read that result: say what it tells you, then do something "
            "else - another input, another tool, or a smaller step that shows why. If nothing else is left, end the "
            "task and say what stands in the way."
        )

    def is_repeated(self, key: str, part: RepeatedCalls, observation: Observation) -> bool | None:
        """The same call with the same result shows the pattern; it has stopped after more calls than between two."""
        return is_again(part, key, observation.call)

    def ignored_after(self, thresholds: LoopThresholds) -> int:
        """As many calls as make a loop."""
        return thresholds.repeats


def _top(part: RepeatedCalls) -> RepeatedCall | None:
    """The row that was repeated most often; by the default thresholds, polls count less."""
    return max(reversed(part.rows), key=lambda row: row.count - (_LESS if row.is_poll else 0), default=None)


def _count(row: RepeatedCall, thresholds: LoopThresholds) -> int:
    return max(0, row.count - max(0, thresholds.polls - thresholds.repeats)) if row.is_poll else row.count


def _in_a_row(row: RepeatedCall) -> str:
    return " in a row" if row.gap == 1 else ""


RULE: Final = Loop()
