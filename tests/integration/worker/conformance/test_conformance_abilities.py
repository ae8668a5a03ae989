"""What is told of the kinds of agents in public is what this suite holds them to."""

from dataclasses import asdict

import pytest

from sandherd.contracts.abilities import ABILITIES
from sandherd.contracts.harnesses import HARNESSES
from tests.integration.worker.conformance.adapters import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_can_do_what_is_said_of_it(kind: str) -> None:
    """Each ability that a test of this suite shows, or that a field of the harness stands for."""
    adapter, fields = KINDS[kind], HARNESSES[kind].model_fields
    assert asdict(ABILITIES[kind]) == {
        "hears_mid_turn": adapter.hears_mid_turn,
        "interruptible": adapter.has_turns,
        "follows_up": adapter.follows_up,
        "keeps_session": adapter.keeps_session,
        "asks_leave": "approvals" in fields,
        "takes_tools": "mcp_servers" in fields,
    }


def test_every_kind_is_told_of() -> None:
    """And nothing else."""
    assert ABILITIES.keys() == HARNESSES.keys()
