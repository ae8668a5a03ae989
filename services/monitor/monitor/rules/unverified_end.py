"""The agent ends its task without a check of its last change."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation, ObservedEvent
from monitor.file_kinds import is_documentation, is_generated, restores_files, shell_command
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from monitor.seen_values import MAX_EVIDENCE_IDS
from sandherd.contracts.events.agent import AgentCompleted
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolUse

_SCAN_SECONDS: Final = 1.5
"""A change that is published within this number of seconds after a check counts as checked, because changes are
collected before they are published."""


class UnverifiedEndThresholds(Thresholds):
    """The number of changes from which an end is unverified."""

    edits: Annotated[int, Unit("edits"), Field(ge=1)] = 1
    """Number of changes of files since the last check, when the task is completed."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """The changes since the last check."""

    edits: int = 0
    since: datetime | None = None
    began: int = 0
    checked_at: datetime | None = None
    program: bool = False
    """Whether the agent is a single program, whose calls are not known, and a change was made while it ran."""
    restores: bool = False
    """Whether the last call restores files: changes until the next call do not count as edits."""
    ended: bool = False
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class UnverifiedEnd(GuardianRule[Unverified, UnverifiedEndThresholds]):
    """The task was completed, and no test, linter, type check or build has run since its last changes."""

    name = "unverified_end"
    order = 260
    thresholds = UnverifiedEndThresholds
    part = Unverified
    reads = (AgentFileEdited, AgentToolUse, AgentCompleted)
    folds_calls = True
    steps = MappingProxyType({"observe": "edits"})
    across_episodes = True
    documentation = Documentation(
        condition="the agent has completed its task (`agent.completed`), and since its last edit no test, linter, "
        "type check or build has run. This is only published; no agent is steered",
        avoids="ignored are changes of documentation and of generated files, files that git restores, and an "
        "iteration that was validated. Nothing is found for an agent that is a single program, because its calls are "
        "not known",
        source="MAST: missing verification is a quarter of failures",
    )

    def fold(self, part: Unverified, observation: Observation, facts: Facts) -> Unverified:
        """Count a change. A check begins the count again; the end of the task is recorded."""
        event = observation.event
        if observation.call is not None:
            return _with_call(part, observation.call)
        if isinstance(event.data, AgentFileEdited):
            return _with_edit(part, event, event.data, facts)
        if isinstance(event.data, AgentToolUse):
            restores = restores_files(shell_command(event.data.input))
            return part if restores == part.restores else replace(part, restores=restores)
        if isinstance(event.data, AgentCompleted):
            return replace(part, ended=not (event.data.validation_passed or event.data.tests_passed))
        return part

    def pattern(self, part: Unverified) -> Pattern | None:
        """The changes since the last check."""
        if part.since is None or part.program:
            return None
        summary = f"{part.edits} changes of files since the last check"
        return Pattern(self.name, "end", part.since, part.began, part.edits, summary, part.evidence)

    def evaluate(
        self, part: Unverified, _facts: Facts, _now: datetime, thresholds: UnverifiedEndThresholds
    ) -> Pattern | None:
        """The changes, once the task is completed."""
        return self.pattern(part) if part.ended and part.edits >= thresholds.edits else None

    def steering_text(self, part: Unverified) -> str:  # noqa: ARG002  # the text is constant
        """The text of a message that is never sent, because the agent has ended."""
        return "Run the project's checks on your last changes before you end the task."

    def is_repeated(self, key: str, part: Unverified, observation: Observation) -> bool | None:  # noqa: ARG002  # has ended
        """None, because the agent has ended."""
        return None

    def ignored_after(self, thresholds: UnverifiedEndThresholds) -> int:
        """A number that is never reached."""
        return thresholds.edits


def _with_call(part: Unverified, call: EndedCall) -> Unverified:
    if call.check is None or not call.is_executed:
        return part
    return Unverified(checked_at=call.at, program=part.program, restores=part.restores)


def _with_edit(part: Unverified, event: ObservedEvent, data: AgentFileEdited, facts: Facts) -> Unverified:
    if part.restores or is_generated(data.file_path) or is_documentation(data.file_path):
        return part
    if part.checked_at is not None and (event.at - part.checked_at).total_seconds() < _SCAN_SECONDS:
        return part
    return replace(
        part,
        edits=part.edits + 1,
        program=part.program or any(call.whole for call in facts.in_flight.values()),
        since=part.since or event.at,
        began=part.began or event.number,
        evidence=(*part.evidence, *([event.id] if event.id else []))[-MAX_EVIDENCE_IDS:],
    )


RULE: Final = UnverifiedEnd()
