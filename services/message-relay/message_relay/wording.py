"""What is said of an approval, to people as events and to its agent as a message. Pure."""

from datetime import datetime

from message_relay.asked import Asked, Decision
from message_relay.judging import LONGEST_WAIT, is_decided_by
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.delivery import ApprovalAnswer, InboxMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EventData
from sandherd.contracts.events.message import ApprovalDenied, ApprovalExpired, ApprovalGranted, ApprovalRequested
from sandherd.contracts.states import ApprovalState


def requested(asked: Asked) -> ApprovalRequested:
    """The event that a person is asked."""
    return ApprovalRequested(
        approval_id=asked.approval_id,
        tool=asked.tool,
        reason=asked.reason,
        expires_at=asked.expires_at,
        on_timeout=asked.on_timeout,
        asked_in=asked.asked_in,
    )


def rejected(asked: Asked, most: int) -> ApprovalDenied:
    """The event that nobody is asked, as too many approvals of its sandbox are open already."""
    reason = f"{most} approvals of {asked.sandbox} are open already; ask again when some are answered"
    return ApprovalDenied(approval_id=asked.approval_id, by="message-relay", reason=reason, code=Code.REFUSED)


def decided(approval_id: str, decision: Decision) -> EventData:
    """The event of what became of it."""
    if decision.state is ApprovalState.EXPIRED:
        outcome = decision.outcome or "denied"
        return ApprovalExpired(approval_id=approval_id, outcome=outcome, reason=decision.reason)
    event = ApprovalGranted if decision.state is ApprovalState.GRANTED else ApprovalDenied
    return event(approval_id=approval_id, by=decision.by, reason=decision.reason, answer=decision.answer)


def message_of(command: Envelope[AnswerApproval], at: datetime, asked: Asked | None) -> InboxMessage:
    """The answer as it waits for the worker: until the approval expires, when there is no more use in it.

    `at` is when the answer was given; the one that decided bears the time of the decision, however often it is given.
    """
    data = command.data
    if asked is not None and asked.decision is not None and is_decided_by(asked, data):
        at = asked.decision.at
    content = ApprovalAnswer(approval_id=data.approval_id, granted=data.granted, reason=data.reason)
    return InboxMessage(
        message=data.message,
        project=command.project,
        sandbox=data.sandbox,
        content=content.model_dump_json(),
        message_type="approval",
        sender_id=data.answered_by,
        correlation_id=data.approval_id,
        sent_at=at,
        expires_at=(asked and asked.expires_at) or at + LONGEST_WAIT,
        traceparent=command.traceparent,
    )


def addressed(message: InboxMessage, asked: Asked) -> InboxMessage:
    """The same answer to the agent that waits for it now: what was asked first may have been asked again since."""
    if (message.sandbox, message.correlation_id) == (asked.sandbox, asked.approval_id):
        return message
    answer = ApprovalAnswer.model_validate_json(message.content).model_copy(update={"approval_id": asked.approval_id})
    return message.model_copy(
        update={
            "sandbox": asked.sandbox,
            "content": answer.model_dump_json(),
            "correlation_id": asked.approval_id,
            "expires_at": asked.expires_at or message.sent_at + LONGEST_WAIT,
        }
    )
