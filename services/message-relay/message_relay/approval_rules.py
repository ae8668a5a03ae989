"""Rules of the decision of an approval: by an answer, a timeout, a withdrawal, or the next attempt. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from message_relay.approval import LONGEST_REASON, Approval, ApprovalDecision, ApprovalRef
from message_relay.delivery_rules import NoRecipient
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.errors import Code
from sandherd.contracts.states import ApprovalState, check_transition

LONGEST_WAIT: Final = timedelta(days=7)
"""How long an answer may wait for an unavailable worker. It is also the maximum age of messages in INBOX."""
WITHDRAWN: Final = "withdrawn"
"""The outcome of an approval whose request was withdrawn."""
REQUESTED_AGAIN: Final = "asked_again"
"""The outcome of an approval that the next attempt's approval has replaced."""
_OUTCOME_ON_TIMEOUT: Final = {"allow": "granted", "deny": "denied"}


@dataclass(frozen=True, slots=True)
class ApprovalRefusal:
    """The refusal of an answer or a message: a code for programs, and a reason for users."""

    code: Code
    reason: str


def refusal(
    approval: Approval | None, answer: AnswerApproval, now: datetime, no_recipient: NoRecipient | None
) -> ApprovalRefusal | None:
    """The refusal of an answer; None if it may decide the approval.

    `no_recipient` is the reason why no agent can need an answer, or None.
    """
    if no_recipient is not None:
        return ApprovalRefusal(Code.REFUSED, no_recipient.reason)
    if approval is None:
        none = f"the agent in {answer.sandbox} requested no approval {answer.approval_id}, or it expired long ago"
        return ApprovalRefusal(Code.NOT_FOUND, none)
    if approval.decision is not None:
        return ApprovalRefusal(Code.CONFLICT, decided_already(approval, approval.decision))
    if _is_past_expiry(approval, now):
        return ApprovalRefusal(
            Code.CONFLICT, f"{_name(approval)} expired at {approval.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        )
    return None


def decided_already(approval: Approval, decision: ApprovalDecision) -> str:
    """The text for users that an approval was decided already."""
    at = f"{decision.at:%Y-%m-%d %H:%M:%S} UTC"
    if decision.outcome == WITHDRAWN:
        return f"{_name(approval)} was withdrawn at {at}: {decision.reason}"
    by = f" by {decision.by}" if decision.by else ""
    what = "expired" if decision.state is ApprovalState.EXPIRED else f"was {decision.state}{by}"
    return f"{_name(approval)} {what} at {at} already"


def _name(approval: Approval) -> str:
    return f"approval {approval.approval_id} of {approval.sandbox}"


def _is_past_expiry(approval: Approval, now: datetime) -> bool:
    return approval.expires_at is not None and now >= approval.expires_at


def answered(approval: Approval, answer: AnswerApproval, at: datetime) -> Approval:
    """The approval, decided by an answer. If a service requested it, the answer is not delivered to a worker."""
    state = ApprovalState.GRANTED if answer.granted else ApprovalState.DENIED
    decision = ApprovalDecision(state=state, at=at, answer=answer.message, by=answer.answered_by, reason=answer.reason)
    hand = "kept" if approval.requested_by is None else "over"
    return _decided(approval, decision).model_copy(update={"hand": hand})


def is_decided_by(approval: Approval, answer: AnswerApproval) -> bool:
    """Whether this answer is the decision: it is sent again, or handled again after a relay was killed."""
    wanted = ApprovalState.GRANTED if answer.granted else ApprovalState.DENIED
    decision = approval.decision
    return decision is not None and (decision.answer, decision.state) == (answer.message, wanted)


def is_answer_expired(approval: Approval, now: datetime) -> bool:
    """Whether the answer is marked as waiting, although it has expired from INBOX while no relay was running."""
    patience = LONGEST_WAIT + timedelta(days=1)
    return approval.decision is not None and approval.waits and now >= approval.decision.at + patience


def lapsed(approval: Approval, now: datetime, *, ended: bool) -> Approval | None:
    """The approval, expired by its timeout or because its sandbox has ended; None if it still waits."""
    if _is_past_expiry(approval, now):
        outcome = _OUTCOME_ON_TIMEOUT[approval.on_timeout or "deny"]
    elif ended:
        outcome = "ended"
    else:
        return None
    return _decided(approval, ApprovalDecision(state=ApprovalState.EXPIRED, at=now, outcome=outcome))


def withdrawn(approval: Approval, reason: str, now: datetime) -> Approval | None:
    """The approval, withdrawn by its agent; None if that changes nothing.

    An answer that waits for a worker is not delivered any more.
    """
    if approval.next is None and approval.decision is None:
        decision = ApprovalDecision(
            state=ApprovalState.EXPIRED, at=now, outcome=WITHDRAWN, reason=reason[:LONGEST_REASON] or None
        )
        return _decided(approval, decision)
    if approval.next is None and approval.hand in {"kept", "handing"}:
        return approval.model_copy(update={"hand": "over"})
    return None


def replaced(approval: Approval, by: ApprovalRef, now: datetime) -> Approval | None:
    """The approval, replaced by the approval `by` of the next attempt, which inherits an answer that no worker has.

    None if it can't be replaced: it has expired, or an agent may have received its answer, which may be used only once.
    """
    if approval.next is not None or _is_past_expiry(approval, now):
        return None
    if approval.decision is not None:
        return approval.model_copy(update={"next": by, "hand": "over"}) if approval.hand == "kept" else None
    why = f"requested again in {by.sandbox} as {by.approval_id}"
    decision = ApprovalDecision(state=ApprovalState.EXPIRED, at=now, outcome=REQUESTED_AGAIN, reason=why)
    return _decided(approval, decision).model_copy(update={"next": by})


def inheriting(approval: Approval, before: Approval) -> Approval | None:
    """The approval, decided by the answer to `before`, which it has replaced; None if there is no answer to inherit."""
    if approval.decision is not None or before.decision is None or before.decision.answer is None:
        return None
    return _decided(approval, before.decision).model_copy(update={"hand": "kept"})


def _decided(approval: Approval, decision: ApprovalDecision) -> Approval:
    check_transition(approval.decision.state if approval.decision else ApprovalState.PENDING, decision.state)
    return approval.model_copy(update={"decision": decision})
