"""Decides what is done with a message, and builds its events. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from pydantic import ValidationError

from sandherd.contracts.commands import SendMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.events.message import (
    MessageAcknowledged,
    MessageDelivered,
    MessageExpired,
    MessageQueued,
    MessageRejected,
)
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState
from sandherd.contracts.streams import MAX_INBOX_MESSAGES

BETWEEN_AGENTS: Final = timedelta(hours=1)
"""How long a message between agents may wait. It is also the default for messages of users."""


class DeliveryStep(Enum):
    """What to do with a waiting message."""

    DELIVER = "hand"
    EXPIRE = "expire"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class NoRecipient:
    """The reason, for users, why a sandbox will never receive a message, and a code for programs."""

    reason: str
    code: Code = Code.CONFLICT


def accepted(command: Envelope[SendMessage], at: datetime, source: str | None = None) -> InboxMessage:
    """The message as it is stored. `at` is the broker's time of the command; the sender's clock is not used."""
    data = command.data
    return InboxMessage(
        message=data.message,
        project=command.project,
        sandbox=data.sandbox,
        content=data.content,
        message_type=data.message_type,
        sender_id=data.sender_id,
        correlation_id=data.correlation_id,
        sent_at=at,
        expires_at=at + timedelta(seconds=data.expires_seconds),
        traceparent=command.traceparent,
        source=source,
    )


def passed_on(event: Envelope[AgentMessageSent], at: datetime, source: str | None = None) -> InboxMessage:
    """An agent's message to another agent, as it is stored. Raises `ContractError` for an invalid message.

    Its content is marked as that of an agent, so that it can't be mistaken for a user's message. Sender and project
    are those of the event, which the broker has checked.
    """
    data = event.data
    try:
        return InboxMessage(
            message=data.message_id,
            project=event.project,
            sandbox=data.recipient,
            content=f"[MESSAGE FROM AGENT {event.subject}] {data.content}",
            message_type="user_message",
            sender_id=event.subject,
            sent_at=at,
            expires_at=at + BETWEEN_AGENTS,
            traceparent=event.traceparent,
            source=source,
        )
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def sender_refusal(message: InboxMessage) -> str | None:
    """The reason, for users, why an agent may not send this message; None if it may."""
    return "an agent can't send messages to itself" if message.sender_id == message.sandbox else None


def ended(sandbox: str, known: SharedSandboxRecord | None) -> NoRecipient | None:
    """The reason why no message can ever reach an agent in this sandbox; None if one may.

    `known` is the sandbox's record, None for an unknown sandbox. Messages to a paused sandbox wait: it may resume.
    """
    if known is None:
        return NoRecipient(f"there is no sandbox {sandbox}", Code.NOT_FOUND)
    if known.state not in SANDBOX_ENDED:
        return (
            NoRecipient(f"there is no agent in sandbox {sandbox}: it was created without a task")
            if not known.task
            else None
        )
    why = f" ({known.reason})" if known.reason else ""
    over = f": attempt {known.attempt} of {known.task} has ended" if known.task else ""
    return NoRecipient(f"sandbox {sandbox} is {known.state}{why}{over}")


def is_reachable(known: SharedSandboxRecord | None) -> bool:
    """Whether a sandbox's worker can respond now. A paused worker can't: it would get a message when it is resumed."""
    return known is None or known.state is not SandboxState.PAUSED


def next_step(message: InboxMessage, now: datetime, no_recipient: NoRecipient | None) -> DeliveryStep:
    """What to do with a waiting message."""
    if no_recipient is not None:
        return DeliveryStep.REJECT
    return DeliveryStep.EXPIRE if now >= message.expires_at else DeliveryStep.DELIVER


def queued(message: InboxMessage) -> MessageQueued:
    """The event of a message that is stored and waits."""
    return MessageQueued(
        message_id=message.message,
        message_type=message.message_type,
        content_length=len(message.content),
        sender_id=message.sender_id,
        correlation_id=message.correlation_id,
    )


def delivered(message: InboxMessage, delivery_ms: float) -> MessageDelivered:
    """The event of a message that its worker has received. `delivery_ms` is the time since it was sent."""
    return MessageDelivered(message_id=message.message, message_type=message.message_type, delivery_ms=delivery_ms)


def acknowledged(message: InboxMessage) -> MessageAcknowledged:
    """The event of a message that its agent has received."""
    return MessageAcknowledged(message_id=message.message, message_type=message.message_type)


def expired(message: InboxMessage, waited_ms: float) -> MessageExpired:
    """The event of a message that has expired before it was delivered."""
    return MessageExpired(message_id=message.message, message_type=message.message_type, waited_ms=waited_ms)


def rejection(
    message: InboxMessage, reason: str, code: Code = Code.REFUSED, command_id: str | None = None
) -> MessageRejected:
    """The event of a message that will never be delivered. `command_id` is that of the command that sent it, if any."""
    return MessageRejected(
        message_id=message.message,
        message_type=message.message_type,
        reason=reason,
        code=code,
        command_id=command_id,
    )


def too_many(sandbox: str) -> str:
    """The reason, for users, why a message to a sandbox with the maximum of waiting messages is refused."""
    return f"{MAX_INBOX_MESSAGES} messages already wait for sandbox {sandbox}; send it again when it has taken some"


def too_many_of_project(project: str, limit: int) -> str:
    """The reason, for users, why a message to a project with the maximum of waiting messages is refused."""
    return f"{limit} messages already wait for sandboxes of project {project}; send it again when they have taken some"
