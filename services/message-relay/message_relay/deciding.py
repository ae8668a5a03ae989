"""What is to be done with a message: pure decisions. The time is passed in."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from pydantic import ValidationError

from message_relay.recorded import Recorded
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.agent import AgentMessageSent
from sandherd.contracts.events.message import (
    MessageAcknowledged,
    MessageDelivered,
    MessageExpired,
    MessageQueued,
    MessageRejected,
)
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState
from sandherd.contracts.streams import MOST_WAITING

BETWEEN_AGENTS: Final = timedelta(hours=1)
"""How long what an agent says to another may wait for it; as long as what a person says by default."""


class Step(Enum):
    """What to do with the first message that waits."""

    HAND = "hand"
    EXPIRE = "expire"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Ended:
    """A sandbox that takes no message, now or ever, and why, for people to read."""

    reason: str


def accepted(command: Envelope[SendMessage], at: datetime) -> InboxMessage:
    """The message as it waits. `at` is the broker's time of the command: a sender's clock decides nothing."""
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
    )


def passed_on(event: Envelope[AgentMessageSent], at: datetime) -> InboxMessage:
    """What an agent says to another, as it waits for that. Raises `ContractError` for what its worker lets nobody say.

    It is marked as another agent's word, so that it passes for nobody else's; its sender and its project are those of
    the event, where the broker has checked them.
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
        )
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def may_say(message: InboxMessage) -> str | None:
    """Why an agent may not say this, for people to read; None if it may."""
    return "an agent can't send messages to itself" if message.sender_id == message.sandbox else None


def ended(sandbox: str, known: Recorded | None) -> Ended | None:
    """Why no message can reach anybody in this sandbox, ever; None if one may. `known` is None for one that is unknown.

    A paused one may go on, and what is sent to it waits.
    """
    if known is None:
        return Ended(f"there is no sandbox {sandbox}")
    if known.state not in SANDBOX_ENDED:
        return Ended(f"there is no agent in sandbox {sandbox}: it was made without a task") if not known.task else None
    why = f" ({known.reason})" if known.reason else ""
    over = f": attempt {known.attempt} of {known.task} is over" if known.task else ""
    return Ended(f"sandbox {sandbox} is {known.state}{why}{over}")


def may_hear(known: Recorded | None) -> bool:
    """Whether there is any use in speaking to its worker now: a frozen one would hear it later, perhaps too late."""
    return known is None or known.state is not SandboxState.PAUSED


def next_step(message: InboxMessage, now: datetime, gone: Ended | None) -> Step:
    """What to do with a message that waits."""
    if gone is not None:
        return Step.REJECT
    return Step.EXPIRE if now >= message.expires_at else Step.HAND


def queued(message: InboxMessage) -> MessageQueued:
    """The event that it is kept and waits."""
    return MessageQueued(
        message_id=message.message,
        message_type=message.message_type,
        content_length=len(message.content),
        sender_id=message.sender_id,
        correlation_id=message.correlation_id,
    )


def delivered(message: InboxMessage, delivery_ms: float) -> MessageDelivered:
    """The event that the worker has it."""
    return MessageDelivered(message_id=message.message, message_type=message.message_type, delivery_ms=delivery_ms)


def acknowledged(message: InboxMessage) -> MessageAcknowledged:
    """The event that the agent has it."""
    return MessageAcknowledged(message_id=message.message, message_type=message.message_type)


def expired(message: InboxMessage, waited_ms: float) -> MessageExpired:
    """The event that nobody took it in time."""
    return MessageExpired(message_id=message.message, message_type=message.message_type, waited_ms=waited_ms)


def rejection(message: InboxMessage, reason: str, code: str | None = None) -> MessageRejected:
    """The event that it can't be delivered, ever."""
    return MessageRejected(message_id=message.message, message_type=message.message_type, reason=reason, code=code)


def too_many(sandbox: str) -> str:
    """Why a sandbox gets no further message for now, for people to read."""
    return f"{MOST_WAITING} messages already wait for sandbox {sandbox}; send it again when it has taken some"


def too_many_of_project(project: str, most: int) -> str:
    """The same for all sandboxes of a project together."""
    return f"{most} messages already wait for sandboxes of project {project}; send it again when they have taken some"
