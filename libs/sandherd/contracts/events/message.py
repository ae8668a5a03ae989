"""What the message-relay says of messages and approvals."""

from typing import ClassVar
from uuid import UUID

from sandherd.contracts.events.base import EventData
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count, Milliseconds, Moment


class MessageEvent(EventData):
    """About one message; none of it is work of an agent."""

    counts_as_work: ClassVar[bool] = False
    message_id: SafeName
    message_type: str = "user_message"


class MessageQueued(MessageEvent):
    """The message is kept and waits for its worker."""

    type: ClassVar[str] = "message.queued"
    content_length: Count
    sender_id: str | None = None
    correlation_id: str | None = None


class MessageDelivered(MessageEvent):
    """The worker has it."""

    type: ClassVar[str] = "message.delivered"
    delivery_ms: Milliseconds
    """From the command to the worker's answer."""


class MessageAcknowledged(MessageEvent):
    """The agent has it."""

    type: ClassVar[str] = "message.acknowledged"


class MessageExpired(MessageEvent):
    """Nobody took it in time."""

    type: ClassVar[str] = "message.expired"
    waited_ms: Milliseconds


class MessageRejected(MessageEvent):
    """It can't be delivered, ever."""

    type: ClassVar[str] = "message.rejected"
    reason: str
    code: str | None = None
    """The kind of the reason, as in `contracts.errors`, where there is one."""


class ApprovalEvent(EventData):
    """About one request for a person's leave."""

    counts_as_work: ClassVar[bool] = False
    approval_id: str


class ApprovalRequested(ApprovalEvent):
    """A person is asked."""

    type: ClassVar[str] = "approval.requested"
    tool: str
    reason: str | None = None
    """Why the agent asks."""
    expires_at: Moment | None = None
    on_timeout: str | None = None
    """What holds when nobody has answered by then: `allow` or `deny`."""
    asked_in: UUID | None = None
    """The agent's own event, which has the input whole."""


class ApprovalGranted(ApprovalEvent):
    """A person agreed."""

    type: ClassVar[str] = "approval.granted"
    closes: ClassVar[str | None] = "approval_id"
    by: str | None = None
    reason: str | None = None
    answer: SafeName | None = None
    """The message that takes it to the agent."""


class ApprovalDenied(ApprovalEvent):
    """A person refused."""

    type: ClassVar[str] = "approval.denied"
    closes: ClassVar[str | None] = "approval_id"
    by: str | None = None
    reason: str | None = None
    answer: SafeName | None = None
    """The message that takes it to the agent."""
    code: str | None = None
    """Why nobody was asked, as a word for programs; None where a person refused."""


class ApprovalExpired(ApprovalEvent):
    """Nobody answered in time, or nobody waits for the answer any more."""

    type: ClassVar[str] = "approval.expired"
    closes: ClassVar[str | None] = "approval_id"
    outcome: str
    """`granted` or `denied` as the stated default was; `ended` if its task, or its sandbox for good, was over first;
    `withdrawn` by its agent; `asked_again` by its task's next attempt, in whose sandbox an answer counts now."""
    reason: str | None = None
    """Why it was withdrawn, or where it is asked again."""
