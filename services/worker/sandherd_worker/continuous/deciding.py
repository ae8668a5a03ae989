"""Whether an agent goes round once more. Pure: the state, what has just happened, and the time decide."""

from dataclasses import dataclass, replace
from typing import Literal

from sandherd.contracts.continuous import Continuous, StopReason


@dataclass(frozen=True, kw_only=True)
class State:
    """What has been, as the events of an iteration tell it."""

    began: float
    """In seconds, by the clock that `now` is read from."""
    iteration: int = 0
    successful: int = 0
    errors: int = 0
    errors_in_a_row: int = 0
    signals: int = 0
    """In how many iterations in a row the agent has said that it is done."""
    cost: int = 0
    valid: bool | None = None
    """What the last validation has found."""


@dataclass(frozen=True)
class Worked:
    """An iteration was done; the agent has said that its work is finished, or not."""

    signalled: bool


@dataclass(frozen=True)
class Failed:
    """An iteration failed."""


@dataclass(frozen=True)
class Judged:
    """The validation has found this."""

    passed: bool


@dataclass(frozen=True)
class Cut:
    """The iteration was stopped in its midst, for this reason."""

    reason: StopReason


Happened = Worked | Failed | Judged | Cut


@dataclass(frozen=True)
class Stop:
    """No further iteration."""

    reason: StopReason


Next = Literal["go_on", "validate"] | Stop


def begun(state: State) -> State:
    """The next iteration begins."""
    return replace(state, iteration=state.iteration + 1)


def after(state: State, happened: Happened) -> State:
    """What is known then."""
    match happened:
        case Worked(signalled=signalled):
            signals = state.signals + 1 if signalled else 0
            return replace(state, successful=state.successful + 1, errors_in_a_row=0, signals=signals)
        case Failed():
            return replace(state, errors=state.errors + 1, errors_in_a_row=state.errors_in_a_row + 1, signals=0)
        case Judged(passed=passed):
            return replace(state, valid=passed, signals=state.signals if passed else 0)
        case Cut():
            return replace(state, errors=state.errors + 1)


def decide(terms: Continuous, state: State, happened: Happened, now: float) -> Next:
    """What is next. `state` knows already what has happened (`after`).

    What is done is done, whatever limit was reached by it; and the work of the last iteration that there may be is
    judged before the limit is.
    """
    match happened:
        case Cut(reason=reason):
            return Stop(reason)
        case Judged(passed=True):
            return Stop("validation_passed")
        case Worked() if _claimed(terms, state):
            return "validate" if terms.validation is not None else Stop("completion_signal")
    limit = _limit(terms, state, now)
    return "go_on" if limit is None else Stop(limit)


def time_left(terms: Continuous, state: State, now: float) -> float | None:
    """How long an iteration may go on, in seconds; None for as long as it likes."""
    if terms.max_duration_seconds is None:
        return None
    return max(0.0, state.began + terms.max_duration_seconds - now)


def too_dear(terms: Continuous, cost: int) -> bool:
    """Whether so much, in all, is as much as it may cost."""
    return terms.max_cost_micro_usd is not None and cost >= terms.max_cost_micro_usd


def _claimed(terms: Continuous, state: State) -> bool:
    """Whether the work is held to be done, so that it is time to judge it. Without a signal it always is."""
    return terms.completion_signal is None or state.signals >= terms.completion_threshold


def _limit(terms: Continuous, state: State, now: float) -> StopReason | None:
    if state.errors_in_a_row >= terms.max_consecutive_errors:
        return "consecutive_errors"
    if too_dear(terms, state.cost):
        return "max_cost_reached"
    if time_left(terms, state, now) == 0:
        return "max_duration_reached"
    return "max_iterations_reached" if state.iteration >= terms.max_iterations else None
