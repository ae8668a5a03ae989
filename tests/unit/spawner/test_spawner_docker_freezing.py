"""Refusals of a Docker Engine to pause or resume a container that is in that state."""

import pytest

from spawner.runtimes.docker.provider import is_frozen_already

RESUMED = "Cannot unpause container 2ce27265cdda: cannot resume a running process: unknown"
"""As Docker Engine 20.10 refuses it while it shows the container as paused."""


@pytest.mark.parametrize(
    ("refusal", "frozen", "done"),
    [
        (RESUMED, False, True),
        ("Container 2ce27265cdda is not paused", False, True),
        ("Container 2ce27265cdda is already paused", True, True),
        (RESUMED, True, False),
        ("Cannot unpause container 2ce27265cdda: ttrpc: closed: unknown", False, False),
    ],
)
def test_refusal_in_the_wanted_state_is_no_failure(refusal: str, frozen: bool, done: bool) -> None:
    """A refusal because of the requested state is no failure; other refusals are failures."""
    assert is_frozen_already(refusal, frozen=frozen) is done
