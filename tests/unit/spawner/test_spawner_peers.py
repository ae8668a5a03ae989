"""What an agent may know of the others."""

from datetime import UTC, datetime, timedelta

import pytest

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from spawner.access.peers import MOST, peers_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def sandbox(name: str, age: int = 0, state: SandboxState = SandboxState.RUNNING, task: str | None = "t") -> SandboxView:
    requested = NOW - timedelta(seconds=age)
    return SandboxView(
        project="p1",
        sandbox=name,
        state=state,
        task=task and f"{task}-{name}",
        runtime="process",
        requested_at=requested,
    )


def test_the_others_are_listed_newest_first_without_the_asker() -> None:
    """With the beginnings of their tasks; a sandbox without a task has no agent."""
    views = [sandbox("a", 3), sandbox("b", 2), sandbox("c", 1), sandbox("d", task=None)]
    found = peers_of("b", views, lambda task: f"{task} " + "x" * 500)
    assert [(peer.sandbox, peer.task, len(peer.text)) for peer in found.peers] == [("c", "t-c", 200), ("a", "t-a", 200)]
    assert not found.more


@pytest.mark.parametrize("state", list(SandboxState))
def test_who_is_at_its_end_is_no_peer(state: SandboxState) -> None:
    """Nobody would take a message there."""
    found = peers_of("b", [sandbox("a", state=state)], str)
    assert (not found.peers) == (state in SANDBOX_ENDING)


def test_a_long_list_says_that_it_is_one() -> None:
    """The newest are in it."""
    found = peers_of("x", [sandbox(f"s{age}", age) for age in range(MOST + 1)], str)
    assert (len(found.peers), found.more, found.peers[0].sandbox) == (MOST, True, "s0")
