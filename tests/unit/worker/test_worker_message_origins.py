"""What a message begins a turn as: who is behind it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.harnesses.driver_task import IterationPrompt, origin_of, to_agent


def message(**fields: Any) -> InboxMessage:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    known = {"message": "m-1", "project": "p1", "sandbox": "sbx-1", "content": "go on", "message_type": "user_message"}
    return InboxMessage.model_validate({**known, "sent_at": now, "expires_at": now, **fields})


@pytest.mark.parametrize(
    ("fields", "origin"),
    [
        ({}, "user"),
        ({"message_type": "interrupt"}, "user"),
        ({"message_type": "guardian_nudge"}, "nudge"),
        ({"message_type": "interrupt", "sender_id": "guardian"}, "nudge"),
        ({"message_type": "system"}, "system"),
        ({"content": "[MESSAGE FROM AGENT sbx-2] hello", "sender_id": "sbx-2"}, "agent"),
        ({"content": "see [MESSAGE FROM AGENT sbx-2]"}, "user"),
    ],
)
def test_origin_is_that_of_the_sender(fields: dict[str, Any], origin: str) -> None:
    """Only a user's own message counts as one; the monitor's and other agents' are counted apart, and as interrupts."""
    assert origin_of(message(**fields)) == origin
    assert to_agent(message(**fields))["origin"] == origin


def test_prompt_of_an_iteration_is_the_workers_own() -> None:
    """A delivered message never has the origin of the worker's own prompt."""
    assert origin_of(IterationPrompt.model_validate(message().model_dump())) == "iteration"
