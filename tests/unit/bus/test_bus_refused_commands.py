"""Which refusals of a project's invalid commands are published, and about what."""

import json
from datetime import UTC, datetime

import pytest

from sandherd.bus.consumers.dead_letters import WINDOW_SECONDS
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.bus.consumers.refused_commands import UNKNOWN, RefusedCommands, refusal_of
from sandherd.client.events.target import TASK_TYPES
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.task import TaskRefused
from sandherd.contracts.names import DerivedIds


def test_refusals_of_a_project_are_limited_in_each_window() -> None:
    """Invalid commands of one project don't fill EVENTS, and another project's are published meanwhile."""
    refused = RefusedCommands(limit=3)
    assert [refused.allows("p1", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert refused.allows("p2", 10.0)
    assert not refused.allows("p1", 10.0 + WINDOW_SECONDS - 1)
    assert refused.allows("p1", 10.0 + WINDOW_SECONDS)


@pytest.mark.parametrize(
    ("command", "data", "entity"),
    [
        ("spawner.cancel_task", {"task": "task-1", "sandbox": "sbx-1"}, "task-1"),
        ("spawner.terminate_sandbox", {"task": "task-1", "sandbox": "sbx-1"}, "sbx-1"),
        ("message-relay.send_message", {"task": "task-1", "sandbox": "sbx-1"}, "sbx-1"),
        ("spawner.terminate_sandbox", {"sandbox": "fleet"}, UNKNOWN),
    ],
)
def test_refusal_is_about_what_its_command_names(command: str, data: dict[str, str], entity: str) -> None:
    """A superfluous field of the other kind, for which it may be refused, does not hide the refusal from the sender."""
    document = json.dumps({"data": data}).encode()
    delivery = Delivery(f"sandherd.v1.command.{command}.p1", document, "COMMANDS", 7, 1, datetime.now(UTC))
    event = refusal_of(DerivedIds(b"key"), delivery, Problem(code=Code.INVALID_FIELD, message="no"))
    assert event is not None
    assert event.subject == entity


def test_missed_refusal_of_a_task_is_found_in_the_history() -> None:
    """A client that reconnects while it is published asks the history for that type, too."""
    assert TaskRefused.type in TASK_TYPES
