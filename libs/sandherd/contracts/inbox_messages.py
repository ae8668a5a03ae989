"""The messages that the message-relay sends to a worker, and the receipts that the worker returns."""

from typing import Literal

from pydantic import ConfigDict, Field

from sandherd.contracts.commands import ApprovalId, MessageType, Note, Text
from sandherd.contracts.envelope import SourceName
from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import SafeName


class InboxMessage(Model):
    """A message as it is stored in INBOX and delivered to the worker."""

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
    source: SourceName | None = Field(default=None, exclude_if=lambda source: source is None)
    """The `source` of the message's events; None: `/sandherd/message-relay/` and the message's name. If it is set, it
    identifies the message instead of the name, because another message may have the same name."""


class ApprovalAnswer(Model):
    """The `content` of a message of the type `approval`, as JSON."""

    model_config = ConfigDict(frozen=True)

    approval_id: ApprovalId
    granted: bool
    reason: str | None = None


class Receipt(Model):
    """The worker's reply to a message. A message delivered twice has two receipts and is passed to the agent once."""

    model_config = ConfigDict(frozen=True)

    message: SafeName
    outcome: Literal["acknowledged", "rejected"]
    reason: Note | None = None
    agent_gone: bool = False
    """Whether a rejected message was rejected because the agent has ended, not because of its content."""
