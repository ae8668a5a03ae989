"""The usage of a sandbox and the progress of its agent, folded from its events. Pure.

`agent.usage` reports the usage since the previous report. The final event of an attempt reports totals, and some
harnesses report nothing else. So a total is the greater of the sum and the reported total, and never decreases. A
worker that publishes an event again repeats its sequence number: a repeated report or end of a turn is not counted. The
usage of an agent includes that of its sub-agents.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from monitor.dataclass_copies import changer
from monitor.facts import EndedCall, ObservedEvent
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.agent import (
    AgentCompleted,
    AgentFailed,
    AgentStarted,
    AgentTurnCompleted,
    AgentUsage,
    AgentWaiting,
    Outcome,
)
from sandherd.contracts.events.call_facts import CallEnd
from sandherd.contracts.model import MAX_WHOLE

MAX_TOKENS: Final = 10**10
"""Maximum tokens of a kind in a report. A report of more is not counted: no attempt can use that number."""
MAX_COST: Final = 10**11
"""Maximum cost in a report, in micro-dollars. A report of more is not counted."""
MAX_TURNS: Final = 10**6
"""Maximum turns of an attempt in a report. A report of more is not counted."""
TOKENS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
COST: Final = "cost_micro_usd"
Report = AgentUsage | Outcome
Fold = Callable[["AgentTotals", ObservedEvent], "AgentTotals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTotals:
    """The totals of one sandbox."""

    turns: int = 0
    tool_calls: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_micro_usd: int = 0
    metered: bool = False
    """Whether any usage was reported."""
    priced: bool = False
    """Whether a cost was reported."""
    unmetered_turns: int = 0
    """Number of turns in which no usage was reported."""
    implausible: int = 0
    """Number of reports that were not counted, because they exceed a maximum."""
    reported: int = 0
    """The worker's sequence number of the last report of usage."""
    ended_turn: int = 0
    """The worker's sequence number of the last event that ended a turn."""
    in_turn: bool = False
    """Whether usage was reported since the last turn ended."""
    began_at: datetime | None = None
    """When its agent started."""
    waiting_at: datetime | None = None
    """When its agent last published that it waits."""
    paused_at: datetime | None = None
    paused_seconds: float = 0.0


_changed: Final = changer(AgentTotals)
NO_PROGRESS: Final = AgentTotals()
"""Shared by all sandboxes whose agent has done nothing yet."""


def after_event(progress: AgentTotals, event: ObservedEvent, call: EndedCall | None) -> AgentTotals:
    """The totals after an event of the worker, which ends `call`."""
    if call is not None:
        return _changed(progress, tool_calls=progress.tool_calls + 1, errors=progress.errors + _has_failed(event))
    fold = _FOLDS_AND_ERRORS.get(event.type)
    return progress if fold is None else fold(progress, event)


def _has_failed(event: ObservedEvent) -> bool:
    return isinstance(event.data, CallEnd) and event.data.has_failed


def after_pause(progress: AgentTotals, at: datetime) -> AgentTotals:
    """The totals after the sandbox was paused."""
    return progress if progress.paused_at is not None else replace(progress, paused_at=at)


def after_resume(progress: AgentTotals, at: datetime) -> AgentTotals:
    """The totals after the sandbox was resumed."""
    if progress.paused_at is None:
        return progress
    seconds = max(0.0, (at - progress.paused_at).total_seconds())
    return replace(progress, paused_at=None, paused_seconds=progress.paused_seconds + seconds)


def wall_seconds(progress: AgentTotals, until: datetime) -> float:
    """How long the agent has worked until `until`, without pauses, in seconds."""
    if progress.began_at is None:
        return 0.0
    end = min(until, progress.paused_at) if progress.paused_at else until
    return max(0.0, (end - progress.began_at).total_seconds() - progress.paused_seconds)


def _with_usage(progress: AgentTotals, event: ObservedEvent) -> AgentTotals:
    """The totals after a report of the usage since the previous report."""
    data = event.data
    if not isinstance(data, AgentUsage) or 0 < event.sequence <= progress.reported:
        return progress
    if not _is_plausible(data):
        return replace(progress, implausible=progress.implausible + 1, reported=event.sequence, in_turn=True)
    totals = {name: min(MAX_WHOLE, getattr(progress, name) + getattr(data, name)) for name in (*TOKENS, COST)}
    return replace(progress, reported=event.sequence, in_turn=True, **_flags(progress, totals), **totals)


def _after_attempt(progress: AgentTotals, event: ObservedEvent) -> AgentTotals:
    """The totals after the final event of an attempt, which reports totals."""
    data = event.data
    if not isinstance(data, Outcome):
        return progress
    turns = max(progress.turns, data.turns if data.turns <= MAX_TURNS else 0)
    if data.turns > MAX_TURNS or not _is_plausible(data):
        return replace(progress, turns=turns, implausible=progress.implausible + 1)
    totals = {name: max(getattr(progress, name), getattr(data, name)) for name in (*TOKENS, COST)}
    return replace(progress, turns=turns, **_flags(progress, totals), **totals)


def _is_plausible(data: Report) -> bool:
    return data.cost_micro_usd <= MAX_COST and all(getattr(data, name) <= MAX_TOKENS for name in TOKENS)


def _flags(progress: AgentTotals, totals: Mapping[str, int]) -> dict[str, Any]:
    priced = progress.priced or totals[COST] > 0
    return {"metered": progress.metered or any(totals.values()), "priced": priced}


def _after_turn(progress: AgentTotals, event: ObservedEvent) -> AgentTotals:
    if 0 < event.sequence <= progress.ended_turn:
        return progress
    unmetered = progress.unmetered_turns + (not progress.in_turn)
    turns, ended_turn = progress.turns + 1, event.sequence or progress.ended_turn
    return replace(progress, turns=turns, ended_turn=ended_turn, unmetered_turns=unmetered, in_turn=False)


def _after_start(progress: AgentTotals, event: ObservedEvent) -> AgentTotals:
    return progress if progress.began_at is not None else replace(progress, began_at=event.at)


def _while_waiting(progress: AgentTotals, event: ObservedEvent) -> AgentTotals:
    return replace(progress, waiting_at=event.at)


def _with_error(progress: AgentTotals, _: ObservedEvent) -> AgentTotals:
    return replace(progress, errors=progress.errors + 1)


def _counting_error(fold: Fold | None) -> Fold:
    """The function that counts an error after `fold`."""
    return _with_error if fold is None else lambda progress, event: _with_error(fold(progress, event), event)


_FOLDS: Final[Mapping[str, Fold]] = {
    AgentStarted.type: _after_start,
    AgentUsage.type: _with_usage,
    AgentTurnCompleted.type: _after_turn,
    AgentWaiting.type: _while_waiting,
    AgentCompleted.type: _after_attempt,
    AgentFailed.type: _after_attempt,
}
_FOLDS_AND_ERRORS: Final[Mapping[str, Fold]] = {
    **_FOLDS,
    **{name: _counting_error(_FOLDS.get(name)) for name, model in EVENTS.items() if model.counts_as_error},
}
