"""What decides an approval, without a broker."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from message_relay.asked import Asked
from message_relay.deciding import Ended
from message_relay.judging import LONGEST_WAIT, answered, is_decided_by, lapsed, refusal
from message_relay.wording import decided, message_of
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.states import ApprovalState, TransitionRefusedError

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ANSWER = AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True, answered_by="ada")
ASKED = Asked(
    project="p1",
    sandbox="sbx-1",
    approval_id="a1",
    tool="Bash",
    asked_at=NOW,
    asked_in=UUID(int=1),
    expires_at=NOW + timedelta(seconds=60),
)


@pytest.mark.parametrize(("after", "refused"), [(0, False), (59, False), (60, True), (61, True)])
def test_it_can_be_answered_until_its_time_is_up(after: int, refused: bool) -> None:
    """One second before, an answer counts; at its time, and after, it is refused; without one it counts for ever."""
    now = NOW + timedelta(seconds=after)
    assert (refusal(ASKED, ANSWER, now, None) is not None) == refused
    assert refusal(ASKED.model_copy(update={"expires_at": None}), ANSWER, now + timedelta(days=400), None) is None


def test_a_refusal_names_its_kind() -> None:
    """Not found, conflict, or refused as its sandbox is gone: a program tells them apart without reading words."""
    after = answered(ASKED, ANSWER, NOW)
    refusals = [
        refusal(None, ANSWER, NOW, None),
        refusal(after, ANSWER, NOW, None),
        refusal(None, ANSWER, NOW, Ended("it is over")),
    ]
    assert [found and found.code for found in refusals] == [Code.NOT_FOUND, Code.CONFLICT, Code.REFUSED]
    assert refusals[1] is not None
    assert refusals[1].reason == "approval a1 of sbx-1 was granted by ada at 2026-11-20 12:00:00 UTC already"


def test_what_is_decided_stays_so() -> None:
    """Neither a second answer nor the time-out changes it: the table of states has no such way."""
    after = answered(ASKED, ANSWER, NOW)
    with pytest.raises(TransitionRefusedError):
        answered(after, ANSWER, NOW)
    with pytest.raises(TransitionRefusedError):
        lapsed(after, NOW + timedelta(days=1), ended=False)


@pytest.mark.parametrize(("default", "outcome"), [("allow", "granted"), ("deny", "denied"), (None, "denied")])
def test_the_stated_default_holds_when_the_time_is_up(default: str | None, outcome: str) -> None:
    """At its time and not before; with no default stated, it is denied."""
    asked = ASKED.model_copy(update={"on_timeout": default})
    assert lapsed(asked, NOW + timedelta(seconds=59), ended=False) is None
    after = lapsed(asked, NOW + timedelta(seconds=60), ended=False)
    assert after is not None
    assert after.decision is not None
    assert (after.decision.state, after.decision.outcome) == (ApprovalState.EXPIRED, outcome)


def test_nothing_waits_in_a_sandbox_that_has_ended() -> None:
    """Before its time is up, too."""
    after = lapsed(ASKED, NOW, ended=True)
    assert after is not None
    assert after.decision is not None
    assert decided("a1", after.decision).model_dump() == {
        "approval_id": "a1",
        "outcome": "ended",
        "reason": None,
    }


def test_only_the_very_same_answer_is_the_same() -> None:
    """The same name with another verdict is another answer."""
    after = answered(ASKED, ANSWER, NOW)
    assert is_decided_by(after, ANSWER)
    assert not is_decided_by(after, ANSWER.model_copy(update={"granted": False}))
    assert not is_decided_by(after, ANSWER.model_copy(update={"message": "msg-2"}))
    assert not is_decided_by(ASKED, ANSWER)


def test_an_answer_given_again_is_the_same_message_to_the_letter() -> None:
    """It bears the time of the decision, so that what is said of it has the same ids; it expires with its approval."""
    command = wrap(
        ANSWER, ANSWER.type, source="/sandherd/client/x", sequence=1, project="p1", subject="sbx-1", time=NOW
    )
    after = answered(ASKED, ANSWER, NOW)
    once, again = (message_of(command, NOW + timedelta(seconds=late), after) for late in (1, 2))
    assert once == again
    assert (once.sent_at, once.expires_at) == (NOW, ASKED.expires_at)
    endless = after.model_copy(update={"expires_at": None})
    assert message_of(command, NOW, endless).expires_at == NOW + LONGEST_WAIT
