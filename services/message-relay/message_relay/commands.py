"""The relay's commands, and messages between agents: each is stored, or rejected with a reason that is published."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, cast

from message_relay.approval_handler import ApprovalHandler
from message_relay.delivery_rules import (
    accepted,
    ended,
    passed_on,
    queued,
    rejection,
    sender_refusal,
    too_many,
    too_many_of_project,
)
from message_relay.events import BEGUN, RelayEvents
from message_relay.inbox import Inbox, Key
from message_relay.record_reader import sandbox_record
from sandherd.bus.connection import Bus, SubjectFullError
from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, Retry
from sandherd.concurrency import KeyedLocks
from sandherd.contracts.commands import AnswerApproval, SendMessage
from sandherd.contracts.decoder import read_command, read_event
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events.conversation import AgentMessageSent

_INBOX_FULL: Final = Retry(5.0, "the inbox of its sandbox is full")


class MessageCommands:
    """Handles the relay's commands; `wake` is called with the sandbox for which a new message waits."""

    def __init__(
        self,
        bus: Bus,
        inbox: Inbox,
        events: RelayEvents,
        approval_handler: ApprovalHandler,
        wake: Callable[[Key], None],
        *,
        max_in_project: int = 2000,
    ) -> None:
        self._max_in_project = max_in_project
        self._bus = bus
        self._inbox = inbox
        self._events = events
        self._approval_handler = approval_handler
        self._wake = wake
        self._locks: KeyedLocks[Key] = KeyedLocks()

    async def handle(self, delivery: Delivery) -> Outcome:
        """Handle one command. Raises `ContractError` for one that breaks the contract."""
        command = cast("Envelope[SendMessage | AnswerApproval]", read_command(delivery.subject, delivery.data))
        async with self._locks.hold((command.project, command.data.sandbox)):
            if isinstance(command.data, AnswerApproval):
                return await self._decide_approval(cast("Envelope[AnswerApproval]", command), delivery)
            message = accepted(cast("Envelope[SendMessage]", command), delivery.at)
            return await self._store(message, first_time=delivery.deliveries == 1, command_id=str(command.id))

    async def pass_on(self, delivery: Delivery) -> Outcome:
        """Handle an agent's message to another of its project. Raises `ContractError` for what breaks the contract."""
        event = cast("Envelope[AgentMessageSent]", read_event(delivery.subject, delivery.data))
        message = passed_on(event, delivery.at)
        async with self._locks.hold((message.project, message.sandbox)):
            refused = sender_refusal(message)
            if refused is not None:
                return await self._reject(message, refused)
            return await self._store(message, first_time=delivery.deliveries == 1)

    async def _decide_approval(self, command: Envelope[AnswerApproval], delivery: Delivery) -> Outcome:
        """Decide an approval. The answer that decided it is stored for the agent; retried while the inbox is full."""
        decided = await self._approval_handler.decide(command, delivery.at)
        if isinstance(decided, Retry):
            return decided
        message, refused = decided
        if refused is not None:
            return await self._reject(message, refused.reason, refused.code, str(command.id))
        try:
            await self._inbox.store(message)
        except SubjectFullError:
            return _INBOX_FULL
        return await self._wait(message)

    async def _store(self, message: InboxMessage, *, first_time: bool, command_id: str | None = None) -> Outcome:
        """Store the message, or reject it: if its sandbox has ended, or if too many messages wait.

        A redelivered command may have been stored, and its message even delivered, before a relay was killed. So it is
        stored again in every state of its sandbox: `InboxDelivery` ends it, with the sequence of an end.
        """
        no_recipient = ended(message.sandbox, await sandbox_record(self._bus, message.project, message.sandbox))
        if no_recipient is not None and first_time:
            return await self._reject(message, no_recipient.reason, no_recipient.code, command_id)
        if first_time and await self._inbox.waiting_in(message.project) >= self._max_in_project:
            full = too_many_of_project(message.project, self._max_in_project)
            return await self._reject(message, full, command_id=command_id)
        try:
            new = await self._inbox.store(message)
        except SubjectFullError:
            # The message of a redelivered command may be among those that wait: publish nothing before that is known.
            if not first_time:
                return _INBOX_FULL
            return await self._reject(message, too_many(message.sandbox), command_id=command_id)
        if not new and first_time:
            return DONE  # another command has the same message; the handling of that one publishes its result
        return await self._wait(message)

    async def _wait(self, message: InboxMessage) -> Outcome:
        await self._events.publish(message, BEGUN, queued(message), datetime.now(UTC))
        self._wake((message.project, message.sandbox))
        return DONE

    async def _reject(
        self, message: InboxMessage, reason: str, code: Code = Code.REFUSED, command_id: str | None = None
    ) -> Outcome:
        rejected = rejection(message, reason, code, command_id)
        await self._events.publish(message, BEGUN, rejected, datetime.now(UTC))
        return DONE
