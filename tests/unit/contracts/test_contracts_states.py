"""The table of state transitions is enforced and consistent."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.states import (
    ALLOWED,
    MESSAGE_TRANSITIONS,
    SANDBOX_ENDED,
    SANDBOX_TRANSITIONS,
    TASK_ENDED,
    TASK_TRANSITIONS,
    MessageState,
    SandboxState,
    TaskState,
    TransitionRefusedError,
    check_transition,
)

KINDS: list[Any] = [
    (TaskState, TASK_TRANSITIONS, TaskState.PENDING, TASK_ENDED),
    (SandboxState, SANDBOX_TRANSITIONS, SandboxState.REQUESTED, SANDBOX_ENDED),
    (
        MessageState,
        MESSAGE_TRANSITIONS,
        MessageState.QUEUED,
        {MessageState.ACKNOWLEDGED, MessageState.EXPIRED, MessageState.REJECTED},
    ),
]
EVERY_STATE = [*TaskState, *SandboxState, *MessageState]


def allowed(before: Any, after: Any) -> bool:
    try:
        check_transition(before, after)
    except TransitionRefusedError:
        return False
    return True


@pytest.mark.parametrize(("kind", "table", "first", "ended"), KINDS)
def test_exactly_the_listed_transitions_are_permitted(kind: Any, table: Any, first: Any, ended: Any) -> None:
    """Every pair of states of a kind is allowed if the table has it, and refused otherwise."""
    assert {pair for pair in product(kind, kind) if allowed(*pair)} == table
    assert ALLOWED[kind] == table


@given(st.sampled_from(EVERY_STATE), st.sampled_from(EVERY_STATE))
def test_states_of_two_kinds_do_not_mix(before: Any, after: Any) -> None:
    """A task never has the state of a sandbox, although some states of both have the same name."""
    if type(before) is not type(after):
        assert not allowed(before, after)


@pytest.mark.parametrize(("kind", "table", "first", "ended"), KINDS)
def test_every_state_is_reachable(kind: Any, table: Any, first: Any, ended: Any) -> None:
    """There is a path from the first state to every other."""
    reached = {first}
    for _ in kind:
        reached |= {after for before, after in table if before in reached}
    assert reached == set(kind)


@pytest.mark.parametrize(("kind", "table", "first", "ended"), KINDS)
def test_every_state_can_end(kind: Any, table: Any, first: Any, ended: Any) -> None:
    """There is a path from every state to an end, so the table lets nothing get stuck."""
    ending = set(ended)
    for _ in kind:
        ending |= {before for before, after in table if after in ending}
    assert ending == set(kind)


@pytest.mark.parametrize(("kind", "table", "first", "ended"), KINDS)
def test_end_is_final_but_for_a_retry(kind: Any, table: Any, first: Any, ended: Any) -> None:
    """No transition leaves an ended state, except that a failed or cancelled task may be retried."""
    leaving = {(before, after) for before, after in table if before in ended}
    retries = {(before, TaskState.PENDING) for before in (TaskState.FAILED, TaskState.CANCELLED)}
    assert leaving == (retries if kind is TaskState else set())


def test_refused_transition_names_both_states() -> None:
    """The error names the kind and both states."""
    with pytest.raises(TransitionRefusedError, match="TaskState: completed → running") as caught:
        check_transition(TaskState.COMPLETED, TaskState.RUNNING)
    assert (caught.value.before, caught.value.after) == (TaskState.COMPLETED, TaskState.RUNNING)
