"""The agent fills its context again and again with the same content."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation
from monitor.file_kinds import is_generated
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from monitor.seen_values import MAX_EVIDENCE_IDS, mark, remembered
from sandherd.contracts.events.conversation import AgentContextCompacted
from sandherd.contracts.events.tools import AgentFileEdited

_MAX_KNOWN: Final = 64
"""Number of calls that are remembered."""
_MAX_CALLS_PER_REPETITION: Final = 3
"""At least one of this number of calls has to be a repetition."""


class CompactionStormThresholds(Thresholds):
    """The thresholds from which compactions are a storm."""

    compactions: Annotated[int, Unit("compactions"), Field(ge=2)] = 3
    """Number of compactions of the context without an edit."""
    repeats: Annotated[int, Unit("calls"), Field(ge=1)] = 3
    """Number of calls since the first of these compactions that repeat an earlier call. They have to be a third of all
    calls."""
    pause_at: Annotated[int, Unit("compactions"), Field(ge=2)] = 6
    """At this number of compactions the sandbox is paused and an approval is requested."""


@dataclass(frozen=True, slots=True)
class Compactions:
    """The compactions since the last edit, and the calls since the first of them."""

    count: int = 0
    since: datetime | None = None
    began: int = 0
    last: int = 0
    """The stream sequence of the last compaction."""
    calls: int = 0
    repeats: int = 0
    known: str = ""
    """The marks of the last calls, also of calls before the compactions."""
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class CompactionStorm(GuardianRule[Compactions, CompactionStormThresholds]):
    """The context is compacted several times without an edit, and the agent repeats earlier calls after that."""

    name = "compaction_storm"
    order = 240
    thresholds = CompactionStormThresholds
    part = Compactions
    reads = (AgentContextCompacted, AgentFileEdited)
    folds_calls = True
    steps = MappingProxyType({"nudge": "compactions", "pause": "pause_at"})
    documentation = Documentation(
        condition="the context was compacted automatically `compactions` times without an edit in between; and of the "
        "calls since the first of these compactions, at least `repeats` and at least a third repeat an earlier call",
        avoids="an agent that reads more than its context can hold: its calls are new. Compactions on request do not "
        "count",
        source="our proposal, no other system has the rule",
    )

    def fold(self, part: Compactions, observation: Observation, _facts: Facts) -> Compactions:
        """Count a compaction or a call. An edit begins the count again."""
        event = observation.event
        if observation.call is not None:
            return _with_call(part, observation.call)
        if isinstance(event.data, AgentFileEdited):
            is_edit = part.count > 0 and not is_generated(event.data.file_path)
            return Compactions(known=part.known) if is_edit else part
        if not isinstance(event.data, AgentContextCompacted) or event.data.trigger == "requested":
            return part
        return replace(
            part,
            count=part.count + 1,
            since=part.since or event.at,
            began=part.began or event.number,
            last=event.number,
            evidence=(*part.evidence, *([event.id] if event.id else []))[-MAX_EVIDENCE_IDS:],
        )

    def pattern(self, part: Compactions) -> Pattern | None:
        """The compactions, even below the threshold."""
        if part.since is None:
            return None
        summary = f"{part.count} compactions without an edit; {part.repeats} of {part.calls} calls were repeated"
        return Pattern(self.name, "compactions", part.since, part.began, part.count, summary, part.evidence)

    def evaluate(
        self, part: Compactions, _facts: Facts, _now: datetime, thresholds: CompactionStormThresholds
    ) -> Pattern | None:
        """The compactions, if there are enough and calls are repeated."""
        if part.count < thresholds.compactions or part.repeats < thresholds.repeats:
            return None
        return self.pattern(part) if part.repeats * _MAX_CALLS_PER_REPETITION >= part.calls else None

    def steering_text(self, part: Compactions) -> str:
        """The message: what the agent does, and what to do instead."""
        return (
            f"Your context was compacted {part.count} times without an edit between, and you read the same content "
            "again each time. Write what you need into a short file of notes, read smaller parts (by line numbers or "
            "a search), and make one change at a time."
        )

    def is_repeated(self, key: str, part: Compactions, observation: Observation) -> bool | None:  # noqa: ARG002  # one key
        """Another compaction shows the pattern; an edit ends it."""
        if part.count == 0:
            return False
        return True if part.last == observation.event.number else None

    def ignored_after(self, thresholds: CompactionStormThresholds) -> int:  # noqa: ARG002  # one more is enough
        """One further compaction."""
        return 1


def _with_call(part: Compactions, call: EndedCall) -> Compactions:
    call_mark = mark(call.digest)
    known = remembered(part.known, call_mark, _MAX_KNOWN)
    if part.count == 0:
        return part if known is part.known else Compactions(known=known)
    return replace(part, known=known, calls=part.calls + 1, repeats=part.repeats + (call_mark in part.known))


RULE: Final = CompactionStorm()
