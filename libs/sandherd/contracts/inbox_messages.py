"""What the message-relay and a worker exchange: a message, and its receipt."""

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
    """The source of its events; None: `/sandherd/message-relay/` and its name. Identifies a message that has one: the
    name of such a message may be that of another one, too."""


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
    """For a rejected message: it was rejected because the agent has ended, not because of its content."""
