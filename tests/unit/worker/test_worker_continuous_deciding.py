"""Whether an agent goes round once more: for every order of things that may happen."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.continuous import Continuous, Validation
from sandherd_worker.continuous.deciding import (
    Cut,
    Failed,
    Happened,
    Judged,
    Next,
    State,
    Stop,
    Worked,
    after,
    begun,
    decide,
    time_left,
)

CHECK = Validation(command="make test")


def terms(**fields: Any) -> Continuous:
    return Continuous(**{"validation": CHECK, **fields})


def said(wanted: Continuous, state: State, happened: Happened, now: float = 1.0) -> Next:
    """What is decided once it has happened."""
    return decide(wanted, after(state, happened), happened, now)


START = begun(State(began=0.0))


def test_work_is_judged_and_judged_work_is_done() -> None:
    """Without a signal every iteration is judged; what has passed is done, what has not goes on."""
    assert said(terms(), START, Worked(signalled=False)) == "validate"
    assert said(terms(), START, Judged(passed=True)) == Stop("validation_passed")
    assert said(terms(), START, Judged(passed=False)) == "go_on"


def test_a_signal_alone_is_believed() -> None:
    """In so many iterations in a row; one without it begins the count anew."""
    wanted = Continuous(completion_signal="DONE", completion_threshold=2)
    once = after(START, Worked(signalled=True))
    assert said(wanted, START, Worked(signalled=True)) == "go_on"
    assert said(wanted, once, Worked(signalled=True)) == Stop("completion_signal")
    assert said(wanted, after(once, Worked(signalled=False)), Worked(signalled=True)) == "go_on"
    assert said(wanted, after(once, Failed()), Worked(signalled=True)) == "go_on"


def test_with_both_a_signal_has_the_work_judged() -> None:
    """Nothing is judged before the agent says that it is done, and a claim that was wrong counts no more."""
    wanted = terms(completion_signal="DONE")
    assert said(wanted, START, Worked(signalled=False)) == "go_on"
    assert said(wanted, START, Worked(signalled=True)) == "validate"
    judged = after(after(START, Worked(signalled=True)), Judged(passed=False))
    assert (judged.signals, judged.valid) == (0, False)


@pytest.mark.parametrize(
    ("limit", "state", "reason"),
    [
        ({"max_iterations": 1}, {}, "max_iterations_reached"),
        ({"max_cost_micro_usd": 5}, {"cost": 5}, "max_cost_reached"),
        ({"max_duration_seconds": 1}, {}, "max_duration_reached"),
        ({"max_consecutive_errors": 1}, {"errors_in_a_row": 1}, "consecutive_errors"),
    ],
)
def test_every_limit_ends_it_and_none_undoes_what_is_done(
    limit: dict[str, int], state: dict[str, Any], reason: Any
) -> None:
    """After work that is not valid; the same limit does not keep the last work from being judged, and found valid."""
    wanted, reached = terms(**limit), State(began=0.0, iteration=1, **state)
    assert decide(wanted, reached, Judged(passed=False), 1.0) == Stop(reason)
    assert decide(wanted, reached, Worked(signalled=False), 1.0) == "validate"
    assert decide(wanted, reached, Judged(passed=True), 1.0) == Stop("validation_passed")


def test_errors_count_in_a_row() -> None:
    """An iteration that was done begins the count anew; the sum of all stays."""
    state = after(after(after(START, Failed()), Worked(signalled=False)), Failed())
    assert (state.errors, state.errors_in_a_row) == (2, 1)
    assert said(terms(max_consecutive_errors=2), state, Failed()) == Stop("consecutive_errors")


def test_what_was_cut_short_ends_for_that_reason() -> None:
    """Whatever else holds."""
    assert said(terms(), START, Cut("shutdown_signal")) == Stop("shutdown_signal")


def test_time_runs_from_the_beginning_of_the_first() -> None:
    """It never gets less than none; without a limit there is no end of it."""
    wanted = terms(max_duration_seconds=10)
    assert [time_left(wanted, State(began=5.0), now) for now in (5.0, 12.0, 99.0)] == [10.0, 3.0, 0.0]
    assert time_left(terms(), State(began=5.0), 99.0) is None


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


def go_round(wanted: Continuous, iterations: list[tuple[str, bool, int]]) -> tuple[State, Next]:
    """As the worker does, a second for each; the agent works on and is never done when the list is at its end."""
    state, verdict, now = State(began=0.0), "go_on", 0.0  # type: tuple[State, Next, float]
    work = iter(iterations)
    while not isinstance(verdict, Stop):
        what, passes, cost = next(work, ("works", False, 1))
        now += 1
        state = begun(state)
        happened: Happened = Failed() if what == "fails" else Worked(what == "claims")
        state = after(State(**{**vars(state), "cost": state.cost + cost}), happened)
        verdict = decide(wanted, state, happened, now)
        if verdict == "validate":
            state = after(state, Judged(passes))
            verdict = decide(wanted, state, Judged(passes), now)
    return state, verdict


@given(TERMS, ITERATIONS)
def test_it_always_ends_within_its_limits_and_says_which(
    wanted: Continuous, iterations: list[tuple[str, bool, int]]
) -> None:
    """No limit is passed by more than one iteration, and the reason is one that holds."""
    state, verdict = go_round(wanted, iterations)
    assert isinstance(verdict, Stop)
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
def test_nothing_is_done_that_did_not_pass_or_was_not_claimed(
    wanted: Continuous, iterations: list[tuple[str, bool, int]]
) -> None:
    """A success needs an iteration that worked; with a validation, one that passed; with a signal, one that claimed."""
    _, verdict = go_round(wanted, iterations)
    if verdict in {Stop("validation_passed"), Stop("completion_signal")}:
        worked = [(what, passes) for what, passes, _ in iterations if what != "fails"]
        assert worked
        assert wanted.validation is None or any(passes for _, passes in worked)
        assert wanted.completion_signal is None or any(what == "claims" for what, _ in worked)
