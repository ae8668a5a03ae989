"""Whose a message's name is, for how long, and whether it can be used again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from message_relay import name_claims
from message_relay.name_claims import (
    MAX_NAMES,
    RESERVED,
    NameClaim,
    NameUse,
    claim_of,
    excess,
    is_unique,
    reservation,
    use_of,
)
from sandherd.contracts.commands import AnswerApproval, SendMessage
from sandherd.contracts.names import created_at, new_name

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIELDS: dict[str, Any] = {"message": "msg-1", "sandbox": "sbx-1", "content": "hello"}


def claim(sequence: int = 1, **fields: Any) -> NameClaim:
    return claim_of(SendMessage(**FIELDS | fields), sequence, NOW)


def test_name_is_free_own_repeated_or_taken() -> None:
    """By the content of the command that has it, and by its sequence; a field at its default is no other content."""
    assert use_of(claim(), None) is NameUse.FREE
    assert use_of(claim(), claim().model_copy(update={"unique": True, "at": NOW + timedelta(1)})) is NameUse.OWN
    assert use_of(claim(2), claim(1)) is NameUse.REPEATED
    assert use_of(claim(2, message_type="user_message", sender_id=None), claim(1)) is NameUse.REPEATED


@pytest.mark.parametrize(
    "changed",
    [
        {"content": "hello "},
        {"sandbox": "sbx-2"},
        {"message_type": "interrupt"},
        {"sender_id": "ada"},
        {"correlation_id": "c"},
        {"expires_seconds": 60},
    ],
    ids=str,
)
def test_every_field_is_content(changed: dict[str, Any]) -> None:
    """Of two commands that differ in any field the second is refused, also if it has the first one's sequence."""
    assert use_of(claim(2, **changed), claim(1)) is NameUse.TAKEN
    assert use_of(claim(1, **changed), claim(1)) is NameUse.TAKEN


def test_answer_is_other_content_than_a_message() -> None:
    """A name is that of one message, whichever command sends it."""
    answer = AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True)
    assert use_of(claim_of(answer, 2, NOW), claim(1)) is NameUse.TAKEN


def test_name_is_reserved_beyond_the_life_of_its_message() -> None:
    """For a day, or ten minutes in a project that has many; an answer may wait for seven days."""
    message = SendMessage(**FIELDS, expires_seconds=60)
    answer = AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True)
    few, many = MAX_NAMES // 2 - 1, MAX_NAMES // 2
    assert [reservation(message, names).seconds for names in (few, many)] == [86_460, 660]
    assert [reservation(answer, names).seconds for names in (few, many)] == [8 * 86_400, 7 * 86_400 + 600]


def test_name_that_is_unique_can_not_be_reserved_twice() -> None:
    """Whenever it is first used, it looks old before it is free; only generated names are, and none in a hurry."""
    name = new_name("msg")
    created = created_at(name)
    assert created is not None
    whole, short = (reservation(SendMessage(**FIELDS, expires_seconds=1), names) for names in (0, MAX_NAMES))
    offsets = [timedelta(minutes=minutes) for minutes in range(-60, 60 * 30)]
    used = [created + offset for offset in offsets if is_unique(name, created + offset, reserved=whole)]
    assert used[0] <= created <= used[-1]
    assert used[-1] < used[0] + timedelta(seconds=whole.seconds)
    assert not is_unique(name, created, reserved=short)
    assert not any(is_unique(chosen, created, reserved=whole) for chosen in ("msg-1", f"msg-{'a' * 32}"))


def test_share_and_size_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At either limit, a further name is refused."""
    monkeypatch.setattr(name_claims, "MAX_NAMES", 10)
    assert excess("p1", 9, 0.74) is None
    assert "10 names of messages of project p1" in str(excess("p1", 10, 0.0))
    assert "nearly full" in str(excess("p1", 0, 0.75))
    assert timedelta(days=1) <= RESERVED
