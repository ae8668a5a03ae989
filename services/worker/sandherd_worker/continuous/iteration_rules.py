"""Decides whether there is another iteration. Pure: depends on the state, the last result and the time."""

from dataclasses import dataclass, replace
from typing import Literal

from sandherd.contracts.continuous import Continuous, StopReason


@dataclass(frozen=True, kw_only=True)
class IterationState:
    """The state so far, as published in iteration events."""

    began: float
    """The time of the start, in seconds, by the clock of `now`."""
    iteration: int = 0
    successful: int = 0
    errors: int = 0
    errors_in_a_row: int = 0
    signals: int = 0
    """The number of consecutive iterations in which the agent has sent the completion signal."""
    cost: int = 0
    valid: bool | None = None
    """The result of the last validation."""


@dataclass(frozen=True)
class IterationResult:
    """An iteration was completed; `signalled` is whether the agent sent the completion signal."""

    signalled: bool


@dataclass(frozen=True)
class IterationFailed:
    """An iteration failed."""


@dataclass(frozen=True)
class WorkValidated:
    """A validation has ended."""

    passed: bool


@dataclass(frozen=True)
class IterationInterrupted:
    """The iteration was stopped before its end, for this reason."""

    reason: StopReason


Happened = IterationResult | IterationFailed | WorkValidated | IterationInterrupted


@dataclass(frozen=True)
class StopIterations:
    """The decision that there is no further iteration."""

    reason: StopReason


Next = Literal["go_on", "validate"] | StopIterations


def next_iteration(state: IterationState) -> IterationState:
    """The state at the start of the next iteration."""
    return replace(state, iteration=state.iteration + 1)


def after(state: IterationState, happened: Happened) -> IterationState:
    """The state after this event."""
    match happened:
        case IterationResult(signalled=signalled):
            signals = state.signals + 1 if signalled else 0
            return replace(state, successful=state.successful + 1, errors_in_a_row=0, signals=signals)
        case IterationFailed():
            return replace(state, errors=state.errors + 1, errors_in_a_row=state.errors_in_a_row + 1, signals=0)
        case WorkValidated(passed=passed):
            return replace(state, valid=passed, signals=state.signals if passed else 0)
        case IterationInterrupted():
            return replace(state, errors=state.errors + 1)


def decide(terms: Continuous, state: IterationState, happened: Happened, now: float) -> Next:
    """The next step. `state` is the state after the event `happened` (see `after`).

    Completed work counts as completed even if a limit is reached. So the work of the last allowed iteration is
    validated before the limit applies.
    """
    match happened:
        case IterationInterrupted(reason=reason):
            return StopIterations(reason)
        case WorkValidated(passed=True):
            return StopIterations("validation_passed")
        case IterationResult() if _is_claimed_done(terms, state):
            return "validate" if terms.validation is not None else StopIterations("completion_signal")
    limit = _limit(terms, state, now)
    return "go_on" if limit is None else StopIterations(limit)


def time_left(terms: Continuous, state: IterationState, now: float) -> float | None:
    """How long an iteration may take, in seconds; None for no limit."""
    if terms.max_duration_seconds is None:
        return None
    return max(0.0, state.began + terms.max_duration_seconds - now)


def cost_limit_reached(terms: Continuous, cost: int) -> bool:
    """Whether this total cost has reached the limit."""
    return terms.max_cost_micro_usd is not None and cost >= terms.max_cost_micro_usd


def _is_claimed_done(terms: Continuous, state: IterationState) -> bool:
    """Whether the agent has signalled that it is done, often enough. Without a completion signal: always."""
    return terms.completion_signal is None or state.signals >= terms.completion_threshold


def _limit(terms: Continuous, state: IterationState, now: float) -> StopReason | None:
    if state.errors_in_a_row >= terms.max_consecutive_errors:
        return "consecutive_errors"
    if cost_limit_reached(terms, state.cost):
        return "max_cost_reached"
    if time_left(terms, state, now) == 0:
        return "max_duration_reached"
    return "max_iterations_reached" if state.iteration >= terms.max_iterations else None
