"""Decisions on approvals, without a broker."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from message_relay.approval import Approval
from message_relay.approval_messages import decided, message_of
from message_relay.approval_rules import LONGEST_WAIT, answered, is_decided_by, lapsed, refusal
from message_relay.delivery_rules import NoRecipient
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.states import ApprovalState, TransitionRefusedError

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ANSWER = AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True, answered_by="ada")
REQUESTED = Approval(
    project="p1",
    sandbox="sbx-1",
    approval_id="a1",
    tool="Bash",
    asked_at=NOW,
    asked_in=UUID(int=1),
    expires_at=NOW + timedelta(seconds=60),
)


@pytest.mark.parametrize(("after", "refused"), [(0, False), (59, False), (60, True), (61, True)])
def test_approval_can_be_decided_until_its_time(after: int, refused: bool) -> None:
    """One second before, a decision counts; at its time, and after, it is refused; without one it always counts."""
    now = NOW + timedelta(seconds=after)
    assert (refusal(REQUESTED, ANSWER, now, None) is not None) == refused
    assert refusal(REQUESTED.model_copy(update={"expires_at": None}), ANSWER, now + timedelta(days=400), None) is None


def test_refusal_has_an_error_code() -> None:
    """The codes are not found, conflict, and refused: a program distinguishes them without the text."""
    after = answered(REQUESTED, ANSWER, NOW)
    refusals = [
        refusal(None, ANSWER, NOW, None),
        refusal(after, ANSWER, NOW, None),
        refusal(None, ANSWER, NOW, NoRecipient("it is over")),
    ]
    assert [found and found.code for found in refusals] == [Code.NOT_FOUND, Code.CONFLICT, Code.REFUSED]
    assert refusals[1] is not None
    assert refusals[1].reason == "approval a1 of sbx-1 was granted by ada at 2026-11-20 12:00:00 UTC already"


def test_decided_approval_is_final() -> None:
    """A second decision and the time-out do not change it: the table of states has no such transition."""
    after = answered(REQUESTED, ANSWER, NOW)
    with pytest.raises(TransitionRefusedError):
        answered(after, ANSWER, NOW)
    with pytest.raises(TransitionRefusedError):
        lapsed(after, NOW + timedelta(days=1), ended=False)


@pytest.mark.parametrize(("default", "outcome"), [("allow", "granted"), ("deny", "denied"), (None, "denied")])
def test_default_applies_at_the_time_out(default: str | None, outcome: str) -> None:
    """The default applies at its time and not before; without one, the approval is denied."""
    requested = REQUESTED.model_copy(update={"on_timeout": default})
    assert lapsed(requested, NOW + timedelta(seconds=59), ended=False) is None
    after = lapsed(requested, NOW + timedelta(seconds=60), ended=False)
    assert after is not None
    assert after.decision is not None
    assert (after.decision.state, after.decision.outcome) == (ApprovalState.EXPIRED, outcome)


def test_approval_ends_with_its_sandbox() -> None:
    """The approval expires before its own time-out, too."""
    after = lapsed(REQUESTED, NOW, ended=True)
    assert after is not None
    assert after.decision is not None
    assert decided("a1", after.decision).model_dump() == {
        "approval_id": "a1",
        "outcome": "ended",
        "reason": None,
    }


def test_only_an_identical_decision_is_the_same() -> None:
    """An equal name with another verdict is another decision."""
    after = answered(REQUESTED, ANSWER, NOW)
    assert is_decided_by(after, ANSWER)
    assert not is_decided_by(after, ANSWER.model_copy(update={"granted": False}))
    assert not is_decided_by(after, ANSWER.model_copy(update={"message": "msg-2"}))
    assert not is_decided_by(REQUESTED, ANSWER)


def test_repeated_decision_is_the_identical_message() -> None:
    """The message's time is that of the decision, so that its events have equal ids; it expires with its approval."""
    command = wrap(
        ANSWER, ANSWER.type, source="/sandherd/client/x", sequence=1, project="p1", subject="sbx-1", time=NOW
    )
    after = answered(REQUESTED, ANSWER, NOW)
    once, again = (message_of(command, NOW + timedelta(seconds=late), after) for late in (1, 2))
    assert once == again
    assert (once.sent_at, once.expires_at) == (NOW, REQUESTED.expires_at)
    endless = after.model_copy(update={"expires_at": None})
    assert message_of(command, NOW, endless).expires_at == NOW + LONGEST_WAIT
