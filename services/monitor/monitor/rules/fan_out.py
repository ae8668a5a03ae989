"""The agent repeatedly requests the same set of calls together."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation
from monitor.normalisation import text_digest
from monitor.repeated_calls import PAUSE
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit

_MAX_CALLS: Final = 12
"""Maximum number of different calls of a batch that are compared: those with the smallest digests."""
_MAX_AGENTS: Final = 3
"""Maximum number of agents and sub-agents whose batches are remembered."""
_MAX_EVIDENCE: Final = 4


class FanOutThresholds(Thresholds):
    """The numbers of responses with the same calls that are acted upon."""

    batches: Annotated[int, Unit("responses"), Field(ge=2)] = 3
    """Number of responses of the model with the same calls and results. A message after which the pattern occurs this
    often counts as `ignored`."""
    interrupt_at: Annotated[int, Unit("responses"), Field(ge=2)] = 8
    """At this number the agent is interrupted."""
    pause_at: Annotated[int, Unit("responses"), Field(ge=2)] = 12
    """At this number the sandbox is paused and an approval is requested."""
    polls: Annotated[int, Unit("responses"), Field(ge=2)] = 10
    """Number of equal responses with a poll that has the same effect as `batches` responses. Each further one has the
    effect of one response."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The calls that one agent has requested together, and the number of equal batches before."""

    parent: str | None = None
    edits: int = 0
    number: int = 0
    """The stream sequence of its first call."""
    began_at: datetime | None = None
    calls: tuple[str, ...] = ()
    """Digests of its different calls with their results, in order."""
    is_complete: bool = False
    """Whether none of its calls is in flight."""
    before: tuple[str, ...] = ()
    """Digests of the calls of the batch before."""
    count: int = 0
    """Number of equal batches in a row, up to the one before."""
    since: int = 0
    """The stream sequence of the first call of these batches."""
    since_at: datetime | None = None
    """When that call began."""
    ended_at: datetime | None = None
    """When its last call ended."""
    polls: bool = False
    """Whether one of its calls is a poll, or it began after a pause."""
    evidence: tuple[UUID, ...] = ()

    @property
    def times(self) -> int:
        """Number of equal batches in a row, including this one; 0 if it is incomplete, or has one call."""
        return self.count + 1 if self.is_complete and len(self.calls) > 1 and self.calls == self.before else 0

    @property
    def key(self) -> str:
        """A key that is the same for the same calls and results."""
        return text_digest(" ".join(self.calls))


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of the last agents that called a tool, the newest last."""

    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True)
class FanOut(GuardianRule[Batches, FanOutThresholds]):
    """Several responses of the model have the same set of calls, with the same results."""

    name = "fan_out"
    order = 120
    thresholds = FanOutThresholds
    part = Batches
    folds_calls = True
    steps = MappingProxyType({"nudge": "batches", "interrupt": "interrupt_at", "pause": "pause_at"})
    documentation = Documentation(
        condition="`batches` responses in a row have the same set of at least two calls, in any order, with the same "
        "results. Inputs and results are compared as by `loop`",
        avoids="equal calls within one response count once. The count begins again after a new content. A set with a "
        "poll has to be repeated `polls` times",
        source="OpenRouter's typescript-agent, which counts duplicates within a response once",
    )

    def fold(self, part: Batches, observation: Observation, facts: Facts) -> Batches:
        """Add the call to the batch of its agent, or begin a new batch."""
        call = observation.call
        if call is None or not call.is_executed:
            return part
        batch = next((candidate for candidate in part.batches if candidate.parent == call.parent), None)
        others = tuple(candidate for candidate in part.batches if candidate is not batch)
        if batch is None or batch.edits != facts.new_contents:
            batch = Batch(call.parent, facts.new_contents)
        if batch.number != call.batch:
            batch = _next_batch(batch, call)
        open_calls = any(
            other.batch == call.batch and other.parent == call.parent for other in facts.in_flight.values()
        )
        return Batches((*others, _with_call(batch, call, is_complete=not open_calls))[-_MAX_AGENTS:])

    def pattern(self, part: Batches) -> Pattern | None:
        """The batch that was repeated most often."""
        batch = _top_batch(part)
        if batch is None or batch.since_at is None:
            return None
        calls, times = len(batch.calls), batch.times
        summary = f"the same {calls} calls together, with the same results, in {times} responses in a row"
        return Pattern(self.name, batch.key, batch.since_at, batch.since, times, summary, batch.evidence)

    def evaluate(self, part: Batches, _facts: Facts, _now: datetime, thresholds: FanOutThresholds) -> Pattern | None:
        """The batch that was repeated most often, if that is often enough. Batches with polls count less."""
        batch = _top_batch(part)
        if batch is None:
            return None
        count = batch.times - (max(0, thresholds.polls - thresholds.batches) if batch.polls else 0)
        pattern = self.pattern(part) if count >= thresholds.batches else None
        return None if pattern is None else replace(pattern, count=count)

    def steering_text(self, part: Batches) -> str:
        """The message: what the agent repeats, and what to do instead."""
        batch = _top_batch(part)
        calls, times = (2, "several") if batch is None else (len(batch.calls), str(batch.times))
        return (
            f"You have requested the same {calls} calls together in {times} responses in a row, and their results were "
            "the same each time. Use the results that you have: say what they tell you, and continue with a step that "
            "depends on them. If nothing is left, end the task and say what stands in the way."
        )

    def is_repeated(self, key: str, part: Batches, observation: Observation) -> bool | None:
        """The same set shows the pattern once it is complete; a complete set that differs does not."""
        call = observation.call
        if call is None or not call.is_executed:
            return None
        batch = next((candidate for candidate in part.batches if candidate.parent == call.parent), None)
        if batch is None or not batch.is_complete:
            return None
        return batch.times > 0 and batch.key == key

    def ignored_after(self, thresholds: FanOutThresholds) -> int:
        """The number of responses that is the pattern."""
        return thresholds.batches


def _next_batch(batch: Batch, call: EndedCall) -> Batch:
    """The next batch of the agent, which begins with this call."""
    is_repetition, began_at = batch.calls == batch.before and batch.count > 0, call.begun_at or call.at
    return Batch(
        *(batch.parent, batch.edits, call.batch, began_at),
        before=batch.calls,
        count=batch.count + 1 if is_repetition else min(1, len(batch.calls)),
        since=batch.since if is_repetition else batch.number,
        since_at=batch.since_at if is_repetition else batch.began_at,
        polls=batch.ended_at is not None and (began_at - batch.ended_at).total_seconds() >= PAUSE,
        evidence=batch.evidence if is_repetition else (),
    )


def _with_call(batch: Batch, call: EndedCall, *, is_complete: bool) -> Batch:
    calls = tuple(sorted({*batch.calls, call.pair})[:_MAX_CALLS]) if batch.calls else (call.pair,)
    ids = call.ids if call.pair in batch.before else ()
    return Batch(
        *(batch.parent, batch.edits, batch.number, batch.began_at, calls, is_complete, batch.before, batch.count),
        *(batch.since, batch.since_at, call.at, batch.polls or call.polls, (*batch.evidence, *ids)[-_MAX_EVIDENCE:]),
    )


def _top_batch(part: Batches) -> Batch | None:
    repeated = (batch for batch in part.batches if batch.times > 0)
    return max(repeated, key=lambda batch: batch.times, default=None)


RULE: Final = FanOut()
