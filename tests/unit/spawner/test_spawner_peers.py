"""The list of peers that an agent gets."""

from datetime import UTC, datetime, timedelta

import pytest

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from spawner.access.peers import MAX_PEERS, peers_of

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


def test_peers_are_listed_newest_first_without_the_requester() -> None:
    """The beginnings of their tasks' texts are included. A sandbox without a task has no agent, so it is not a peer."""
    views = [sandbox("a", 3), sandbox("b", 2), sandbox("c", 1), sandbox("d", task=None)]
    found = peers_of("b", views, lambda task: f"{task} " + "x" * 500)
    assert [(peer.sandbox, peer.task, len(peer.text)) for peer in found.peers] == [("c", "t-c", 200), ("a", "t-a", 200)]
    assert not found.more


@pytest.mark.parametrize("state", list(SandboxState))
def test_stopping_sandbox_is_not_a_peer(state: SandboxState) -> None:
    """A sandbox that stops or has ended would receive no message."""
    found = peers_of("b", [sandbox("a", state=state)], str)
    assert (not found.peers) == (state in SANDBOX_ENDING)


def test_long_list_of_peers_is_truncated() -> None:
    """The newest peers are in the list, and `more` is set."""
    found = peers_of("x", [sandbox(f"s{age}", age) for age in range(MAX_PEERS + 1)], str)
    assert (len(found.peers), found.more, found.peers[0].sandbox) == (MAX_PEERS, True, "s0")
