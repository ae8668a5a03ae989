"""The agent runs a command or changes a file that a constraint forbids."""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field

from monitor.constraint_violations import Violation, forbidden_call, forbidden_edit
from monitor.facts import EndedCall, Facts, Observation, ObservedEvent
from monitor.file_locations import MAX_DEPTH, ShellLocation, after_cd
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from monitor.seen_values import MAX_EVIDENCE_IDS
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.events.agent import AgentStarted
from sandherd.contracts.events.monitor import MonitorInterventionDecided
from sandherd.contracts.events.sandbox import SandboxRequested
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolUse

MAX_STARTED: Final = 8
"""Maximum number of forbidden calls in flight that are remembered. Further ones count as violations immediately."""
_MAX_LATER_CALLS: Final = 10
"""Number of other calls after which a violation is not acted upon any more."""
_MAX_WORK_TREE_LENGTH: Final = 200
_FOLDER_CHANGE: Final = re.compile(r"(?:^|[\s;&|(])(?:cd|pushd)\s+(\"[^\"]+\"|'[^']+'|[^\s;&|)]+)")
_NOT_EXECUTED_OUTCOMES: Final = frozenset({"denied", "refused"})


class ConstraintThresholds(Thresholds):
    """The numbers of violations that are acted upon."""

    violations: Annotated[int, Unit("violations"), Field(ge=1)] = 1
    """At this number of violations the agent is interrupted."""
    pause_at: Annotated[int, Unit("violations"), Field(ge=1)] = 2
    """At this number of violations the sandbox is paused and an approval is requested."""


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A forbidden call that has not ended: a user may still refuse it."""

    digest: str
    constraint: str
    shown: str


@dataclass(frozen=True, slots=True)
class Violations:
    """The agent's constraints, and its violations of them."""

    constraints: Constraints | None = None
    work_tree: str = ""
    depth: int = 0
    """The maximum depth in the work tree that the agent's shell may have."""
    started: tuple[StartedCall, ...] = ()
    count: int = 0
    constraint: str = ""
    shown: str = ""
    since: datetime | None = None
    began: int = 0
    """The stream sequence of the last violation."""
    calls: int = _MAX_LATER_CALLS
    """Number of other calls that have ended since the last violation was found, at most the number after which it is
    ignored."""
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class Constraint(GuardianRule[Violations, ConstraintThresholds]):
    """A path is written, or a command runs, that a constraint of its task, profile, project or herd forbids."""

    name = "constraint"
    order = 95
    thresholds = ConstraintThresholds
    part = Violations
    reads = (SandboxRequested, AgentStarted, AgentToolUse, AgentFileEdited, MonitorInterventionDecided)
    folds_calls = True
    steps = MappingProxyType({"interrupt": "violations", "pause": "pause_at"})
    across_episodes = True
    documentation = Documentation(
        condition="a changed path, or the parsed arguments of a command, match a [constraint](#constraints)",
        avoids="a mention is not a violation: texts, searches, here-documents and arguments of other programs are not "
        "commands, and reading a path does not write it. Ignored are temporary folders, caches, paths that may be in "
        "the work tree, calls that were denied or refused, dry runs, and commands of users",
        source="recorded sessions: an agent runs such a command in one of fifteen sessions",
    )

    def fold(self, part: Violations, observation: Observation, facts: Facts) -> Violations:
        """Count a violation, or update what is needed to recognise one."""
        event = observation.event
        if observation.call is not None:
            return _after_call_end(part, observation.call)
        data = event.data
        if isinstance(data, AgentToolUse):
            return _after_call(part, event, data, facts)
        if isinstance(data, AgentFileEdited):
            return _after_edit(part, event, data)
        if isinstance(data, SandboxRequested):
            return part if data.constraints is None else replace(part, constraints=data.constraints)
        if isinstance(data, AgentStarted):
            return _in_work_tree(part, data.work_tree)
        is_own_decision = isinstance(data, MonitorInterventionDecided) and data.rule == self.name
        # A violation that has been acted upon must not be found again.
        return replace(part, calls=_MAX_LATER_CALLS) if is_own_decision else part

    def pattern(self, part: Violations) -> Pattern | None:
        """The last violation."""
        if part.since is None:
            return None
        summary = f"{part.constraint}: {part.shown}"
        return Pattern(self.name, part.constraint, part.since, part.began, part.count, summary, part.evidence)

    def evaluate(
        self, part: Violations, facts: Facts, _now: datetime, thresholds: ConstraintThresholds
    ) -> Pattern | None:
        """The last violation; None if it is old, if it was acted upon, or if a user has sent a message since."""
        if part.since is None or part.calls >= _MAX_LATER_CALLS or part.count < thresholds.violations:
            return None
        is_of_episode = facts.episode_at is None or part.since >= facts.episode_at
        return self.pattern(part) if is_of_episode else None

    def steering_text(self, part: Violations) -> str:
        """The message: what the agent did, and what to do instead."""
        return (
            f"You have done what you must not do here ({part.constraint}): {part.shown!r}. Do not do it again, and "
            "not in another form. If it had an effect, state it and undo it where you can. If the task needs it, ask a "
            "user and wait for the answer."
        )

    def is_repeated(self, key: str, part: Violations, observation: Observation) -> bool | None:
        """Another violation of the same constraint shows the pattern; other calls do not."""
        if part.count and part.began == observation.event.number:
            return part.constraint == key or None
        return None if observation.call is None else False

    def ignored_after(self, thresholds: ConstraintThresholds) -> int:  # noqa: ARG002  # one more is enough
        """One further violation."""
        return 1


def _after_call(part: Violations, event: ObservedEvent, data: AgentToolUse, facts: Facts) -> Violations:
    """The part after a call has begun. The end of the call decides whether it was a violation."""
    if data.event_subtype == "program":
        return part
    shell_location = ShellLocation(part.work_tree, "", part.depth)
    violation = forbidden_call(data.tool, data.input, part.constraints, shell_location)
    part = _with_depth(part, data, shell_location)
    if violation is None:
        return part
    call = facts.in_flight.get(data.tool_use_id)
    if call is None or call.digest is None or len(part.started) >= MAX_STARTED:
        return _with_violation(part, violation, event.number, event.at, event.id)
    return replace(part, started=(*part.started, StartedCall(call.digest, violation.constraint, violation.shown)))


def _with_depth(part: Violations, data: AgentToolUse, shell_location: ShellLocation) -> Violations:
    """The part after a call has begun. A shell may stay in the folder to which the call changes."""
    command: Any = data.input.get("command") or data.input.get("cmd")
    if not isinstance(command, str) or ("cd " not in command and "pushd " not in command):
        return part
    for folder in _FOLDER_CHANGE.findall(command[:2000])[:20]:
        shell_location = after_cd(shell_location, folder.strip("\"'"))
    depth = MAX_DEPTH if shell_location.folder else shell_location.depth
    return replace(part, depth=depth) if depth > part.depth else part


def _after_call_end(part: Violations, call: EndedCall) -> Violations:
    ended_call = next((started_call for started_call in part.started if started_call.digest == call.digest), None)
    if ended_call is None:
        return replace(part, calls=part.calls + 1) if part.calls < _MAX_LATER_CALLS else part
    started = list(part.started)
    started.remove(ended_call)
    part = replace(part, started=tuple(started))
    if call.outcome in _NOT_EXECUTED_OUTCOMES:
        return part
    return _with_violation(part, Violation(ended_call.constraint, ended_call.shown), call.number, call.at, call.id)


def _after_edit(part: Violations, event: ObservedEvent, data: AgentFileEdited) -> Violations:
    if part.constraints is None or not part.constraints.paths:
        return part
    paths = (data.file_path, *([data.previous_path] if data.previous_path else []))
    first_violation = next(
        (violation for path in paths if (violation := forbidden_edit(path, part.constraints)) is not None), None
    )
    return part if first_violation is None else _with_violation(part, first_violation, event.number, event.at, event.id)


def _with_violation(part: Violations, violation: Violation, number: int, at: datetime, id: UUID | None) -> Violations:
    return replace(
        part,
        count=part.count + 1,
        constraint=violation.constraint,
        shown=violation.shown,
        since=at,
        began=number,
        calls=0,
        evidence=(*part.evidence, *([id] if id else []))[-MAX_EVIDENCE_IDS:],
    )


def _in_work_tree(part: Violations, path: str | None) -> Violations:
    """The part with the work tree's path, as its worker states it. `/` is not accepted: every path would be in it."""
    if (
        path is None
        or len(path) > _MAX_WORK_TREE_LENGTH
        or not re.fullmatch(r"(?:/(?!\.\.?(?:/|$))[^/\x00-\x1f]+)+", path)
    ):
        return part
    return replace(part, work_tree=path)


RULE: Final = Constraint()
