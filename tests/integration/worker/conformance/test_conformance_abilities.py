"""The published capabilities of each kind of agent are those that this suite tests."""

from dataclasses import asdict

import pytest

from sandherd.contracts.harness_kinds import CAPABILITIES
from sandherd.contracts.harnesses import HARNESSES
from tests.integration.worker.conformance.adapters import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_capabilities_of_a_kind_match_its_adapter(kind: str) -> None:
    """Each published capability is shown by a test of this suite, or stands for a field of the harness."""
    adapter, fields = KINDS[kind], HARNESSES[kind].model_fields
    assert asdict(CAPABILITIES[kind]) == {
        "accepts_messages_mid_turn": adapter.receives_mid_turn,
        "interruptible": adapter.has_turns,
        "accepts_follow_ups": adapter.follows_up,
        "stores_session": adapter.keeps_session,
        "requests_approvals": "approvals" in fields,
        "accepts_tools": "mcp_servers" in fields,
    }


def test_every_kind_has_capabilities() -> None:
    """Every kind has capabilities, and there are no others."""
    assert CAPABILITIES.keys() == HARNESSES.keys()
