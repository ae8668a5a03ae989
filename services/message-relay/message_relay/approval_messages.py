"""Builds the events of an approval, and the message with the answer for its agent. Pure."""

from datetime import datetime

from message_relay.approval import Approval, ApprovalDecision
from message_relay.approval_rules import LONGEST_WAIT, is_decided_by
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EventData
from sandherd.contracts.events.message import ApprovalDenied, ApprovalExpired, ApprovalGranted, ApprovalRequested
from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage
from sandherd.contracts.states import ApprovalState


def requested(approval: Approval) -> ApprovalRequested:
    """The event of an approval that is requested from users."""
    return ApprovalRequested(
        approval_id=approval.approval_id,
        tool=approval.tool,
        reason=approval.reason,
        expires_at=approval.expires_at,
        on_timeout=approval.on_timeout,
        asked_in=approval.asked_in if approval.requested_by is None else None,
        requested_by=approval.requested_by,
    )


def rejected(approval: Approval, excess: str) -> ApprovalDenied:
    """The event of a request that is rejected because of a limit. `excess` is the text about the limit."""
    reason = f"{excess}; request it again when some are answered"
    return ApprovalDenied(approval_id=approval.approval_id, by="message-relay", reason=reason, code=Code.REFUSED)


def decided(approval_id: str, decision: ApprovalDecision) -> EventData:
    """The event of a decision."""
    if decision.state is ApprovalState.EXPIRED:
        outcome = decision.outcome or "denied"
        return ApprovalExpired(approval_id=approval_id, outcome=outcome, reason=decision.reason)
    event = ApprovalGranted if decision.state is ApprovalState.GRANTED else ApprovalDenied
    return event(approval_id=approval_id, by=decision.by, reason=decision.reason, answer=decision.answer)


def message_of(command: Envelope[AnswerApproval], at: datetime, approval: Approval | None) -> InboxMessage:
    """The answer as a message for the worker. It expires with the approval, because it is of no use after that.

    `at` is when the answer was sent. If this answer decided the approval, the time of the decision is used instead, so
    that the message is the same when the answer is sent again.
    """
    data = command.data
    if approval is not None and approval.decision is not None and is_decided_by(approval, data):
        at = approval.decision.at
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
        expires_at=(approval and approval.expires_at) or at + LONGEST_WAIT,
        traceparent=command.traceparent,
    )


def addressed(message: InboxMessage, approval: Approval) -> InboxMessage:
    """The answer, addressed to the sandbox and approval that wait for it now, after it was requested again."""
    if (message.sandbox, message.correlation_id) == (approval.sandbox, approval.approval_id):
        return message
    answer = ApprovalAnswer.model_validate_json(message.content).model_copy(
        update={"approval_id": approval.approval_id}
    )
    return message.model_copy(
        update={
            "sandbox": approval.sandbox,
            "content": answer.model_dump_json(),
            "correlation_id": approval.approval_id,
            "expires_at": approval.expires_at or message.sent_at + LONGEST_WAIT,
        }
    )
