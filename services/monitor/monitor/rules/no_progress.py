"""The agent repeats what it has done, and neither changes a file nor gets a check to pass."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation
from monitor.file_kinds import is_generated
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from monitor.seen_values import MAX_EVIDENCE_IDS, mark, mark_of_call, remembered
from sandherd.contracts.events.monitor import MonitorInterventionDecided
from sandherd.contracts.events.tools import AgentFileEdited

WINDOW: Final = 26
"""Number of recent calls for which the share of new calls is computed."""
_MAX_KNOWN: Final = 96
"""Number of calls that are remembered with their results."""
_MAX_PASSED_CHECKS: Final = 8
"""Number of passed checks that are remembered."""
_POLL_SECONDS: Final = 30.0
"""A repeated call that comes at least this many seconds after the one before is a poll."""
_KINDS_WITHOUT_CHANGE: Final = frozenset({"research", "review"})
"""The kinds of tasks that change no files."""


class NoProgressThresholds(Thresholds):
    """The numbers of responses and new calls from which there is no progress."""

    responses: Annotated[int, Unit("responses"), Field(ge=1)] = 21
    """Number of responses of the model with calls since the last progress. Calls that run at the same time count as one
    response."""
    new_calls: Annotated[int, Unit("calls"), Field(ge=0, le=WINDOW)] = 9
    """Maximum number of new calls among the last 26 calls. If there are fewer calls, it is reduced in proportion."""


@dataclass(frozen=True, slots=True)
class CallProgress:
    """The agent's calls since the last progress, and which of them were new."""

    responses: int = 0
    since: datetime | None = None
    began: int = 0
    window: str = ""
    """A character for each of the last calls: `n` for a new one, `.` for a repeated one."""
    known: str = ""
    """The marks of calls with their results."""
    batch: int = 0
    """The batch of the last call: all calls of one response have the same batch."""
    passed: str = ""
    """The marks of checks that have passed since the last edit."""
    last_at: datetime | None = None
    nudged: bool = False
    """Whether the agent got a message of this rule in this episode."""
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class NoProgress(GuardianRule[CallProgress, NoProgressThresholds]):
    """The agent makes many calls, of which few are new, without an edit and without a check that begins to pass."""

    name = "no_progress"
    order = 250
    thresholds = NoProgressThresholds
    part = CallProgress
    reads = (AgentFileEdited, MonitorInterventionDecided)
    folds_calls = True
    steps = MappingProxyType({"nudge": "responses"})
    soft = True
    documentation = Documentation(
        condition="in `responses` responses with calls no file was edited and no check began to pass, and at most "
        f"`new_calls` of the last {WINDOW} calls were new. A call is new if the same call with the same result is not "
        "remembered. Found at most once in an episode",
        avoids="an agent that reads before it edits: its calls are new. Polls, and calls that are repeated after "
        f"{_POLL_SECONDS:.0f} s or more, do not count. Tasks of the kinds `research` and `review` need no change",
        source="recorded sessions: 6 of 26 calls are new in a session that is stuck, and nearly all in one that "
        "explores",
    )

    def fold(self, part: CallProgress, observation: Observation, _facts: Facts) -> CallProgress:
        """Count a response, or record progress or the decision to intervene."""
        data = observation.event.data
        if observation.call is not None:
            return _with_call(part, observation.call)
        if isinstance(data, AgentFileEdited):
            return part if is_generated(data.file_path) else _after_progress(part, passed="")
        is_own_decision = isinstance(data, MonitorInterventionDecided) and data.rule == self.name
        return replace(part, nudged=True) if is_own_decision else part

    def pattern(self, part: CallProgress) -> Pattern | None:
        """The responses since the last progress, even below the threshold."""
        if part.since is None:
            return None
        summary = (
            f"no edit and no newly passing check in {part.responses} responses with calls; {part.window.count('n')} "
            f"of the last {len(part.window)} calls were new"
        )
        return Pattern(self.name, "progress", part.since, part.began, part.responses, summary, part.evidence)

    def evaluate(
        self, part: CallProgress, facts: Facts, _now: datetime, thresholds: NoProgressThresholds
    ) -> Pattern | None:
        """The responses, if there are enough of them, and few of their calls were new."""
        if part.nudged or part.responses < thresholds.responses or facts.task_kind in _KINDS_WITHOUT_CHANGE:
            return None
        is_repetitive = part.window.count("n") * WINDOW <= thresholds.new_calls * len(part.window)
        return self.pattern(part) if is_repetitive else None

    def steering_text(self, part: CallProgress) -> str:
        """The message: what the agent does, and what to do instead."""
        return (
            f"In your last {part.responses} steps no file has changed and no check has begun to pass, and your calls "
            "repeat earlier ones. Write down in one sentence what you still need to know, get it with a call that you "
            "have not made yet, or make the change. If you can't continue, end the task and state what prevents it."
        )

    def is_repeated(self, key: str, part: CallProgress, observation: Observation) -> bool | None:  # noqa: ARG002  # one key
        """A repeated call shows the pattern. A new call and progress do not."""
        if observation.call is None:
            return False if part.responses == 0 else None
        return part.responses > 0 and not part.window.endswith("n")

    def ignored_after(self, thresholds: NoProgressThresholds) -> int:
        """As many calls as `responses`."""
        return thresholds.responses


def _after_progress(part: CallProgress, *, passed: str) -> CallProgress:
    return replace(part, responses=0, since=None, began=0, passed=passed, evidence=())


def _with_call(part: CallProgress, call: EndedCall) -> CallProgress:
    check_mark = mark(call.digest) if call.check is not None else ""
    if call.check_passed is False:
        part = replace(part, passed=part.passed.replace(check_mark, ""))
    elif call.check_passed and check_mark not in part.passed:
        part = _after_progress(part, passed=remembered(part.passed, check_mark, _MAX_PASSED_CHECKS))
    call_mark = mark_of_call(call)
    is_new = call_mark not in part.known
    if call.polls or (not is_new and _is_after_pause(part, call)):
        return replace(part, last_at=call.at)
    return CallProgress(
        part.responses + (call.batch != part.batch),
        part.since or call.at,
        part.began or call.number,
        (part.window + ("n" if is_new else "."))[-WINDOW:],
        remembered(part.known, call_mark, _MAX_KNOWN),
        call.batch,
        part.passed,
        call.at,
        part.nudged,
        part.evidence if call.id is None else (*part.evidence[1 - MAX_EVIDENCE_IDS :], call.id),
    )


def _is_after_pause(part: CallProgress, call: EndedCall) -> bool:
    return part.last_at is not None and (call.at - part.last_at).total_seconds() >= _POLL_SECONDS


RULE: Final = NoProgress()
