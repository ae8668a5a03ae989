"""Events of the message-relay about messages and approvals."""

from typing import ClassVar
from uuid import UUID

from sandherd.contracts.events.base import CommandRefusal, Emitter, EventData
from sandherd.contracts.model import Count, Milliseconds, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import ApprovalState, MessageState, State
from sandherd.plurals import pluralize


class MessageEvent(EventData):
    """An event about one message. It is not work of an agent."""

    emitted_by: ClassVar[Emitter] = "message-relay"
    counts_as_work: ClassVar[bool] = False
    message_id: SafeName
    message_type: str = "user_message"

    def summarize(self) -> str:
        return f"{self.message_id}, {self.message_type}"


class MessageQueued(MessageEvent):
    """The message is stored and waits for its worker."""

    type: ClassVar[str] = "message.queued"
    sets_state: ClassVar[State | None] = MessageState.QUEUED
    content_length: Count
    sender_id: str | None = None
    correlation_id: str | None = None

    def summarize(self) -> str:
        sender = f" from {self.sender_id}" if self.sender_id else ""
        return f"{super().summarize()}{sender}, {pluralize(self.content_length, 'character')}"


class MessageDelivered(MessageEvent):
    """The message was delivered to the worker."""

    type: ClassVar[str] = "message.delivered"
    sets_state: ClassVar[State | None] = MessageState.DELIVERED
    delivery_ms: Milliseconds
    """Milliseconds from the command to the worker's receipt."""

    def summarize(self) -> str:
        return f"{self.message_id} in {self.delivery_ms:.1f} ms"


class MessageAcknowledged(MessageEvent):
    """The message was passed to the agent."""

    type: ClassVar[str] = "message.acknowledged"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = MessageState.ACKNOWLEDGED


class MessageExpired(MessageEvent):
    """The message expired: the agent did not get it in time."""

    type: ClassVar[str] = "message.expired"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = MessageState.EXPIRED
    waited_ms: Milliseconds

    def summarize(self) -> str:
        return f"{super().summarize()}, after {self.waited_ms / 1000:.1f} s"


class MessageRejected(MessageEvent):
    """The message can never be delivered."""

    type: ClassVar[str] = "message.rejected"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = MessageState.REJECTED
    reason: str
    code: str | None = None
    """The reason as a code of `contracts.errors`, where there is one."""
    command_id: str | None = None
    """The `id` of the command that sent it; None if an agent sent it, or its worker rejected it later."""

    def summarize(self) -> str:
        return f"{self.message_id}: {self.reason}"


class MessageRefused(CommandRefusal):
    """A command about a message or an approval was rejected: it is invalid, or another message has its name."""

    type: ClassVar[str] = "message.refused"
    emitted_by: ClassVar[Emitter] = "message-relay"
    closes_source: ClassVar[bool] = True


class ApprovalEvent(EventData):
    """An event about one approval."""

    emitted_by: ClassVar[Emitter] = "message-relay"
    counts_as_work: ClassVar[bool] = False
    approval_id: str


class ApprovalRequested(ApprovalEvent):
    """An approval is pending: a user has to decide."""

    type: ClassVar[str] = "approval.requested"
    sets_state: ClassVar[State | None] = ApprovalState.PENDING
    tool: str
    reason: str | None = None
    """Why the approval is requested."""
    expires_at: Moment | None = None
    on_timeout: str | None = None
    """The decision if no user has answered by `expires_at`: `allow` or `deny`."""
    asked_in: UUID | None = None
    """The id of the `agent.approval_requested` event, which has the complete input."""
    requested_by: str | None = None
    """The service that requested it, such as `monitor`; None if the agent did."""

    def summarize(self) -> str:
        return f"{self.approval_id}: {self.tool}" + (f", {self.reason}" if self.reason else "")


class ApprovalGranted(ApprovalEvent):
    """A user granted the approval."""

    type: ClassVar[str] = "approval.granted"
    closes: ClassVar[str | None] = "approval_id"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = ApprovalState.GRANTED
    by: str | None = None
    reason: str | None = None
    answer: SafeName | None = None
    """The message that delivers the answer to the agent."""

    def summarize(self) -> str:
        return self.approval_id + (f" by {self.by}" if self.by else "")


class ApprovalDenied(ApprovalEvent):
    """The approval was denied: by a user, or without a user's decision (`code`)."""

    type: ClassVar[str] = "approval.denied"
    closes: ClassVar[str | None] = "approval_id"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = ApprovalState.DENIED
    by: str | None = None
    reason: str | None = None
    answer: SafeName | None = None
    """The message that delivers the answer to the agent."""
    code: str | None = None
    """Why no user decided, as a code; None if a user denied it."""

    def summarize(self) -> str:
        return self.approval_id + (f" by {self.by}" if self.by else "") + (f": {self.reason}" if self.reason else "")


class ApprovalExpired(ApprovalEvent):
    """The approval timed out, or its agent no longer waits for the answer."""

    type: ClassVar[str] = "approval.expired"
    closes: ClassVar[str | None] = "approval_id"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = ApprovalState.EXPIRED
    outcome: str
    """`granted` or `denied`: no user answered, and the default in the request applies; `ended`: its task ended first,
    or its sandbox ended for good; `withdrawn`: its agent withdrew it; `asked_again`: the next attempt of its task
    requested it again, and now an answer counts in the sandbox of that attempt."""
    reason: str | None = None
    """Why it was withdrawn, or in which sandbox it was requested again."""

    def summarize(self) -> str:
        return f"{self.approval_id}: {self.outcome}" + (f", {self.reason}" if self.reason else "")
