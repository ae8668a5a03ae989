"""The agent gets the same error repeatedly, or only errors."""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation
from monitor.normalisation import tool_label
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit

_MAX_CAUSES: Final = 6
_MAX_GAP: Final = 10
"""Maximum number of calls from one error to the next of the same cause."""
_MAX_EVIDENCE: Final = 4
_OUTAGE_CALLS: Final = 10
"""Maximum number of calls after an outage whose errors may result from it."""
_SUSPENSION: Final = 3
"""The rule ignores this number of calls for each call that an outage has prevented. It is small, because the output of
a single command may look like an outage."""
_COMMAND_TOOL: Final = re.compile(r"bash|shell|terminal|exec|command|cmd|run", re.IGNORECASE)
"""Tools that run commands: one command that succeeds does not show that another one has become possible."""
_MAX_FIXES: Final = 3
"""Number of repetitions of the same call after an edit that do not count: each may have been an attempt to fix the
error."""
_ANY_DISCOUNT: Final = 5
"""The difference between the default thresholds `unbroken` and `errors`."""
_ANY_CAUSE: Final = "any"
"""The key of the pattern of unbroken errors."""


class ErrorThresholds(Thresholds):
    """The numbers of errors that are a streak."""

    errors: Annotated[int, Unit("errors"), Field(ge=2)] = 3
    """Number of errors of the same cause. A message after which the pattern occurs this often counts as `ignored`."""
    interrupt_at: Annotated[int, Unit("errors"), Field(ge=2)] = 5
    """At this number the agent is interrupted."""
    pause_at: Annotated[int, Unit("errors"), Field(ge=2)] = 8
    """At this number the sandbox is paused and an approval is requested."""
    unbroken: Annotated[int, Unit("errors"), Field(ge=2)] = 8
    """Number of errors of any cause, without a successful call in between, that has the same effect as `errors` errors
    of one cause. Each further one has the effect of one error."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Errors of one cause. Errors of one batch of calls count once."""

    error: str
    call: str
    tool: str
    began: int
    began_at: datetime
    place: int
    """The number of calls of the episode up to the last error."""
    batch: int
    last: int
    """The stream sequence of the last error."""
    edits: int
    """`Facts.new_contents` at the last error: the number of edits until then."""
    count: int = 1
    fixes: int = 0
    """Number of these errors that were of the same call as the one before, after an edit."""
    gap: int = 1
    evidence: tuple[UUID, ...] = ()

    @property
    def times(self) -> int:
        """The number of errors that count."""
        return self.count - min(self.fixes, _MAX_FIXES)


@dataclass(frozen=True, slots=True)
class Streak:
    """Errors in a row, of any cause."""

    count: int = 0
    batch: int = 0
    began: int = 0
    began_at: datetime | None = None
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Errors:
    """The last errors of an episode."""

    causes: tuple[Cause, ...] = ()
    streak: Streak = Streak()
    place: int = 0
    """The number of calls of the episode."""
    outages: int = 0
    """Number of calls that the last outage prevented."""
    outage_place: int | None = None
    """The value of `place` at the last of these calls."""

    @property
    def is_outage(self) -> bool:
        """Whether errors may currently result from an outage."""
        max_calls = min(_OUTAGE_CALLS, _SUSPENSION * self.outages)
        return self.outage_place is not None and self.place - self.outage_place < max_calls

    def cause(self, error: str) -> Cause | None:
        """The errors of one cause."""
        return next((cause for cause in self.causes if cause.error == error), None)


@dataclass(frozen=True)
class ErrorStreak(GuardianRule[Errors, ErrorThresholds]):
    """The agent gets the same error repeatedly, whatever the input; or errors of any cause, without a success."""

    name = "error_streak"
    order = 130
    thresholds = ErrorThresholds
    part = Errors
    folds_calls = True
    steps = MappingProxyType({"nudge": "errors", "interrupt": "interrupt_at", "pause": "pause_at"})
    documentation = Documentation(
        condition="`errors` errors have the same cause, whatever the tool and the input, with at most "
        f"{_MAX_GAP - 1} other calls between two of them; or `unbroken` errors of any cause occur without a successful "
        "call in between. The cause is the text of the error, without line numbers and other parts that vary by "
        "chance. All calls that time out have the same cause",
        avoids="errors of one response with the same cause count once. The cause of a failed check is its output, and "
        "the count begins again after a new content. If another call gets the same error after an edit, the count "
        f"begins again; {_MAX_FIXES} errors of the same call after an edit do not count. A call that was denied, "
        "refused by a user, interrupted or prevented by an outage is not an error. For each call that an outage "
        f"prevented, the rule is suspended for {_SUSPENSION} calls, at most {_OUTAGE_CALLS}. A failed poll is not an "
        "error, nor is a command that ends with status 1 without the text of an error. A cause is forgotten when the "
        "same input succeeds, or any call of the same tool if the tool runs no commands",
        source="OpenHands needs three errors of a call, Hermes eight of a tool. 4 % of recorded sessions have such a "
        "streak, and 5 % only look like it",
    )

    def fold(self, part: Errors, observation: Observation, facts: Facts) -> Errors:
        """Count an error, or a call without one."""
        call = observation.call
        if call is None or (call.error is None and call.outcome != "outage" and part is _NO_ERRORS):
            return part
        place = part.place + 1
        if call.outcome == "outage":
            is_new_outage = part.outage_place is None or place - part.outage_place > _OUTAGE_CALLS
            return replace(part, place=place, outages=1 if is_new_outage else part.outages + 1, outage_place=place)
        if not call.is_executed or (call.polls and call.error is not None):
            return part
        causes = tuple(cause for cause in part.causes if place - cause.place <= _MAX_GAP)
        if call.error is None:
            tool = None if _COMMAND_TOOL.search(call.tool) else call.tool
            others = tuple(cause for cause in causes if cause.call != call.digest and cause.tool != tool)
            return replace(part, causes=others, place=place, streak=Streak()) if others or part.outages else _NO_ERRORS
        with_failure = _with_error if call.check is None else _with_check
        return with_failure(replace(part, causes=causes, place=place), call, facts.new_contents)

    def pattern(self, part: Errors) -> Pattern | None:
        """The cause of most errors, or errors of any cause if more of them are in a row."""
        cause = _top_cause(part)
        if cause is None or cause.times < part.streak.count - _ANY_DISCOUNT:
            return self._streak_pattern(part.streak, part.streak.count - _ANY_DISCOUNT) if part.streak.count else None
        return self._of_cause(cause)

    def _of_cause(self, cause: Cause) -> Pattern:
        summary = f"{tool_label(cause.tool)}: the same error {cause.count} times"
        return Pattern(self.name, cause.error, cause.began_at, cause.began, cause.times, summary, cause.evidence)

    def _streak_pattern(self, streak: Streak, count: int) -> Pattern:
        assert streak.began_at is not None
        summary = f"{streak.count} errors in a row, and no call that succeeded"
        return Pattern(self.name, _ANY_CAUSE, streak.began_at, streak.began, count, summary, streak.evidence)

    def evaluate(self, part: Errors, _facts: Facts, _now: datetime, thresholds: ErrorThresholds) -> Pattern | None:
        """The cause of most errors, or errors of any cause, if they are a streak; None during an outage."""
        if (not part.causes and not part.streak.count) or part.is_outage:
            return None
        cause, unbroken = _top_cause(part), thresholds.errors + part.streak.count - thresholds.unbroken
        if cause is not None and cause.times >= max(thresholds.errors, unbroken):
            return self._of_cause(cause)
        return self._streak_pattern(part.streak, unbroken) if unbroken >= thresholds.errors else None

    def steering_text(self, part: Errors) -> str:
        """The message: what fails, and what to do instead."""
        cause = _top_cause(part)
        if cause is None or cause.times < part.streak.count - _ANY_DISCOUNT:
            fails = f"Your last {part.streak.count} calls have all failed."
        else:
            fails = f"You have got the same error {cause.count} times, the last time from {tool_label(cause.tool)}."
        return (
            f"{fails} Do not vary the call again. Read the whole text of the error, and find out why it occurs: check "
            "what you assume about paths, versions, permissions and the state of files, in one small step. If you "
            "can't remove the cause, take a way that does not need it, or end the task and say what stands in the way."
        )

    def is_repeated(self, key: str, part: Errors, observation: Observation) -> bool | None:
        """An error of the same cause shows the pattern.

        It has stopped if more calls have passed than between two errors.
        """
        call = observation.call
        if call is None or not call.is_executed:
            return None
        if key == _ANY_CAUSE:
            return None if call.polls else call.error is not None
        cause = part.cause(key)
        if cause is not None and cause.last == call.number:
            return True
        return False if cause is None or part.place - cause.place >= cause.gap else None

    def ignored_after(self, thresholds: ErrorThresholds) -> int:
        """The number of errors that is a streak."""
        return thresholds.errors


_NO_ERRORS: Final = Errors()


def _with_check(part: Errors, call: EndedCall, edits: int) -> Errors:
    """The part after a check that failed. The cause is the output of the check.

    The count begins again after an edit, because a check is expected to fail while the agent works on it.
    """
    cause = part.cause(call.result)
    return _with_cause(part, cause, call, call.result, edits, begins=cause is not None and cause.edits != edits)


def _with_error(part: Errors, call: EndedCall, edits: int) -> Errors:
    """The part after the error of a call that is not a check.

    The count begins again if another call gets the same error after an edit, because that error concerns something
    else.
    """
    assert call.error is not None
    cause, streak = part.cause(call.error), part.streak
    begins = cause is not None and cause.edits != edits and cause.call != call.digest
    part = _with_cause(part, cause, call, call.error, edits, begins=begins)
    if streak.batch == call.batch and streak.count:
        return part
    evidence = (*streak.evidence, *call.ids)[-_MAX_EVIDENCE:]
    began, began_at = streak.began or call.number, streak.began_at or call.at
    return replace(part, streak=Streak(streak.count + 1, call.batch, began, began_at, evidence))


def _with_cause(part: Errors, cause: Cause | None, call: EndedCall, error: str, edits: int, *, begins: bool) -> Errors:
    """The part with another error of a cause. If it `begins`, the count of this cause begins again."""
    others = tuple(other for other in part.causes if other is not cause)
    if cause is None or (begins and cause.batch != call.batch):
        fields = call.digest, call.tool, call.number, call.at, part.place, call.batch, call.number, edits
        return replace(part, causes=(*others, Cause(error, *fields, evidence=call.ids))[-_MAX_CAUSES:])
    updated = replace(cause, place=part.place, call=call.digest, tool=call.tool, edits=edits)
    if cause.batch != call.batch:
        updated = replace(
            updated,
            count=cause.count + 1,
            fixes=cause.fixes + (cause.edits != edits),
            gap=max(cause.gap, part.place - cause.place),
            batch=call.batch,
            last=call.number,
            evidence=(*cause.evidence, *call.ids)[-_MAX_EVIDENCE:],
        )
    return replace(part, causes=(*others, updated))


def _top_cause(part: Errors) -> Cause | None:
    return max(reversed(part.causes), key=lambda cause: cause.times, default=None)


RULE: Final = ErrorStreak()
