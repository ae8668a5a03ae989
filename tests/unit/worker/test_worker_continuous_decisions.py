"""Whether another iteration follows, for every order of results."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.continuous import Continuous, Validation
from sandherd_worker.continuous.iteration_rules import (
    Happened,
    IterationFailed,
    IterationInterrupted,
    IterationResult,
    IterationState,
    Next,
    StopIterations,
    WorkValidated,
    after,
    decide,
    next_iteration,
    time_left,
)

CHECK = Validation(command="make test")


def terms(**fields: Any) -> Continuous:
    return Continuous(**{"validation": CHECK, **fields})


def decided(wanted: Continuous, state: IterationState, happened: Happened, now: float = 1.0) -> Next:
    """What is decided once it has happened."""
    return decide(wanted, after(state, happened), happened, now)


START = next_iteration(IterationState(began=0.0))


def test_validated_work_is_done() -> None:
    """Without a signal every iteration is validated; a passed one is done, a failed one continues."""
    assert decided(terms(), START, IterationResult(signalled=False)) == "validate"
    assert decided(terms(), START, WorkValidated(passed=True)) == StopIterations("validation_passed")
    assert decided(terms(), START, WorkValidated(passed=False)) == "go_on"


def test_signal_without_a_check_is_believed() -> None:
    """The signal must occur in the set number of consecutive iterations; one without it restarts the count."""
    wanted = Continuous(completion_signal="DONE", completion_threshold=2)
    once = after(START, IterationResult(signalled=True))
    assert decided(wanted, START, IterationResult(signalled=True)) == "go_on"
    assert decided(wanted, once, IterationResult(signalled=True)) == StopIterations("completion_signal")
    assert decided(wanted, after(once, IterationResult(signalled=False)), IterationResult(signalled=True)) == "go_on"
    assert decided(wanted, after(once, IterationFailed()), IterationResult(signalled=True)) == "go_on"


def test_signalled_work_is_validated() -> None:
    """Nothing is validated before the signal, and a false one no longer counts."""
    wanted = terms(completion_signal="DONE")
    assert decided(wanted, START, IterationResult(signalled=False)) == "go_on"
    assert decided(wanted, START, IterationResult(signalled=True)) == "validate"
    validated = after(after(START, IterationResult(signalled=True)), WorkValidated(passed=False))
    assert (validated.signals, validated.valid) == (0, False)


@pytest.mark.parametrize(
    ("limit", "state", "reason"),
    [
        ({"max_iterations": 1}, {}, "max_iterations_reached"),
        ({"max_cost_micro_usd": 5}, {"cost": 5}, "max_cost_reached"),
        ({"max_duration_seconds": 1}, {}, "max_duration_reached"),
        ({"max_consecutive_errors": 1}, {"errors_in_a_row": 1}, "consecutive_errors"),
    ],
)
def test_every_limit_stops_after_the_work_is_judged(limit: dict[str, int], state: dict[str, Any], reason: Any) -> None:
    """A limit ends the iterations after invalid work, and does not keep the last work from being validated."""
    wanted, reached = terms(**limit), IterationState(began=0.0, iteration=1, **state)
    assert decide(wanted, reached, WorkValidated(passed=False), 1.0) == StopIterations(reason)
    assert decide(wanted, reached, IterationResult(signalled=False), 1.0) == "validate"
    assert decide(wanted, reached, WorkValidated(passed=True), 1.0) == StopIterations("validation_passed")


def test_errors_count_consecutively() -> None:
    """A completed iteration restarts the count; the total stays."""
    state = after(after(after(START, IterationFailed()), IterationResult(signalled=False)), IterationFailed())
    assert (state.errors, state.errors_in_a_row) == (2, 1)
    assert decided(terms(max_consecutive_errors=2), state, IterationFailed()) == StopIterations("consecutive_errors")


def test_interrupted_iteration_stops_for_that_reason() -> None:
    """The reason of the interruption is the reason of the stop."""
    assert decided(terms(), START, IterationInterrupted("shutdown_signal")) == StopIterations("shutdown_signal")


def test_time_left_counts_from_the_first_iteration() -> None:
    """The time left is never negative; without a limit it is unlimited."""
    wanted = terms(max_duration_seconds=10)
    assert [time_left(wanted, IterationState(began=5.0), now) for now in (5.0, 12.0, 99.0)] == [10.0, 3.0, 0.0]
    assert time_left(terms(), IterationState(began=5.0), 99.0) is None


ITERATIONS = st.lists(st.tuples(st.sampled_from(["works", "claims", "fails"]), st.booleans(), st.integers(0, 50)))
TERMS = st.builds(
    Continuous,
    max_iterations=st.integers(1, 8),
    max_cost_micro_usd=st.none() | st.integers(1, 100),
    max_duration_seconds=st.none() | st.integers(1, 8),
    max_consecutive_errors=st.integers(1, 4),
    completion_signal=st.just("DONE"),
    completion_threshold=st.integers(1, 3),
    validation=st.none() | st.just(CHECK),
) | st.builds(Continuous, max_iterations=st.integers(1, 8), validation=st.just(CHECK))


def go_round(wanted: Continuous, iterations: list[tuple[str, bool, int]]) -> tuple[IterationState, Next]:
    """As the worker does, a second for each; the agent works on and is never done when the list is at its end."""
    state, verdict, now = IterationState(began=0.0), "go_on", 0.0  # type: tuple[IterationState, Next, float]
    work = iter(iterations)
    while not isinstance(verdict, StopIterations):
        what, passes, cost = next(work, ("works", False, 1))
        now += 1
        state = next_iteration(state)
        happened: Happened = IterationFailed() if what == "fails" else IterationResult(what == "claims")
        state = after(IterationState(**{**vars(state), "cost": state.cost + cost}), happened)
        verdict = decide(wanted, state, happened, now)
        if verdict == "validate":
            state = after(state, WorkValidated(passes))
            verdict = decide(wanted, state, WorkValidated(passes), now)
    return state, verdict


@given(TERMS, ITERATIONS)
def test_iterations_stop_within_limits_with_the_reason(
    wanted: Continuous, iterations: list[tuple[str, bool, int]]
) -> None:
    """No limit is exceeded by more than one iteration, and the reason is one that holds."""
    state, verdict = go_round(wanted, iterations)
    assert isinstance(verdict, StopIterations)
    assert state.iteration <= wanted.max_iterations
    assert state.errors_in_a_row <= wanted.max_consecutive_errors
    assert state.successful + state.errors == state.iteration
    assert wanted.max_duration_seconds is None or state.iteration <= wanted.max_duration_seconds
    holds = {
        "validation_passed": wanted.validation is not None and state.valid,
        "completion_signal": wanted.validation is None and state.signals >= wanted.completion_threshold,
        "max_iterations_reached": state.iteration == wanted.max_iterations,
        "max_cost_reached": state.cost >= (wanted.max_cost_micro_usd or 0),
        "max_duration_reached": state.iteration == wanted.max_duration_seconds,
        "consecutive_errors": state.errors_in_a_row == wanted.max_consecutive_errors,
    }
    assert holds[verdict.reason]


@given(TERMS, ITERATIONS)
def test_success_requires_a_working_validated_iteration(
    wanted: Continuous, iterations: list[tuple[str, bool, int]]
) -> None:
    """A success needs an iteration that worked; with a validation, one that passed; with a signal, one with it."""
    _, verdict = go_round(wanted, iterations)
    if verdict in {StopIterations("validation_passed"), StopIterations("completion_signal")}:
        worked = [(what, passes) for what, passes, _ in iterations if what != "fails"]
        assert worked
        assert wanted.validation is None or any(passes for _, passes in worked)
        assert wanted.completion_signal is None or any(what == "claims" for what, _ in worked)
