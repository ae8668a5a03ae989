"""What passes between the message-relay and a worker: a message, and the receipt that answers it."""

from typing import Literal

from pydantic import ConfigDict

from sandherd.contracts.commands import ApprovalId, MessageType, Note, Text
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Moment


class InboxMessage(Model):
    """A message as it waits in INBOX and as the worker is handed it."""

    model_config = ConfigDict(frozen=True)

    message: SafeName
    project: SafeName
    sandbox: SafeName
    content: Text
    message_type: MessageType
    sender_id: str | None = None
    correlation_id: str | None = None
    sent_at: Moment
    expires_at: Moment
    traceparent: str | None = None


class ApprovalAnswer(Model):
    """The `content` of a message of the type `approval`, as JSON."""

    model_config = ConfigDict(frozen=True)

    approval_id: ApprovalId
    granted: bool
    reason: str | None = None


class Receipt(Model):
    """The worker's answer. A message handed over twice is answered twice and reaches the agent once."""

    model_config = ConfigDict(frozen=True)

    message: SafeName
    outcome: Literal["acknowledged", "rejected"]
    reason: Note | None = None
    agent_gone: bool = False
    """Of one that is rejected: there is no agent any more, so it was not this message that was wrong."""
