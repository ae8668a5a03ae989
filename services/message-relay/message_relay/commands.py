"""Handles the relay's commands, and messages between agents: each is stored, or rejected by an event with the reason.

A command first claims the name of its message. The claim contains the command's sequence in COMMANDS. So a command that
is redelivered, because a relay was killed, finds its own claim and continues.
"""

import hashlib
from datetime import UTC, datetime
from typing import Any, Final, cast

from message_relay.approval_handler import ApprovalHandler
from message_relay.approval_rules import ApprovalRefusal
from message_relay.delivery_rules import (
    accepted,
    acknowledged,
    delivered,
    ended,
    passed_on,
    queued,
    rejection,
    sender_refusal,
    too_many,
    too_many_of_project,
)
from message_relay.dispatcher import Dispatcher
from message_relay.inbox import FirstMessage, Inbox, Key
from message_relay.message_names import MessageNames, NameEntry
from message_relay.name_claims import NameClaim, NameUse, claim_of, excess, is_unique, reservation, taken, use_of
from message_relay.record_reader import sandbox_record
from message_relay.relay_events import ACKNOWLEDGED, BEGUN, ENDED, RelayEvents, named_source
from sandherd.bus.connection import Bus, StreamFullError, SubjectFullError
from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, Retry
from sandherd.concurrency import KeyedLocks, both
from sandherd.contracts.commands import AnswerApproval, RequestApproval, SendMessage, WithdrawApproval
from sandherd.contracts.decoder import read_command, read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.records import SharedSandboxRecord

_INBOX_FULL: Final = Retry(5.0, "the inbox of its sandbox is full")
_NAMES_FULL: Final = Retry(5.0, "the bucket of messages' names is full")
_CLAIMED_CONCURRENTLY: Final = Retry(0.05, "its name was claimed at the same time")


class MessageCommands:
    """Handles the relay's commands; the dispatcher is woken for a sandbox for which a new message waits."""

    def __init__(
        self,
        bus: Bus,
        inbox: Inbox,
        names: MessageNames,
        events: RelayEvents,
        approval_handler: ApprovalHandler,
        *,
        dispatcher: Dispatcher,
        max_in_project: int = 2000,
    ) -> None:
        self._max_in_project = max_in_project
        self._bus = bus
        self._inbox = inbox
        self._names = names
        self._events = events
        self._approval_handler = approval_handler
        self._dispatcher = dispatcher
        self._locks: KeyedLocks[Key] = KeyedLocks()

    async def handle(self, delivery: Delivery) -> Outcome:
        """Handle one command. Raises `ContractError` if it is invalid, or if its message's name is taken."""
        known: Envelope[Any] = read_command(delivery.subject, delivery.data)
        if isinstance(known.data, RequestApproval | WithdrawApproval):
            async with self._locks.hold((known.project, known.data.sandbox)):
                if isinstance(known.data, RequestApproval):
                    return await self._approval_handler.request(known, delivery)
                return await self._approval_handler.withdraw_of_service(known)
        return await self._handle_message(known, delivery)

    async def _handle_message(self, command: Envelope[SendMessage | AnswerApproval], delivery: Delivery) -> Outcome:
        async with self._locks.hold((command.project, command.data.sandbox)):
            entry, known = await both(
                self._names.find(command.project, command.data.message),
                sandbox_record(self._bus, command.project, command.data.sandbox),
            )
            match use_of(claim_of(command.data, delivery.stream_sequence, delivery.at), entry.claim):
                case NameUse.TAKEN:
                    raise taken(command.data.message)
                case NameUse.REPEATED:
                    return DONE  # the handling of the earlier command publishes its result
            if entry.claim is None and await self._events.was_rejected(command.project, command.data.sandbox, delivery):
                return DONE
            if isinstance(command.data, AnswerApproval):
                return await self._decide_approval(cast("Envelope[AnswerApproval]", command), delivery, entry)
            return await self._accept(cast("Envelope[SendMessage]", command), delivery, entry, known)

    async def pass_on(self, delivery: Delivery) -> Outcome:
        """Handle an agent's message to another agent of its project. Raises `ContractError` for an invalid event."""
        event = cast("Envelope[AgentMessageSent]", read_event(delivery.subject, delivery.data))
        message = passed_on(event, delivery.at, self._source_of_agent(event, delivery.data))
        async with self._locks.hold((message.project, message.sandbox)):
            if await self._events.was_rejected(message.project, message.sandbox, delivery):
                return DONE
            refused = sender_refusal(message)
            if refused is not None:
                return await self._reject(message, delivery, ApprovalRefusal(Code.REFUSED, refused))
            if delivery.deliveries > 1:  # it may have been stored before
                return await self._store_again(message)
            known = await sandbox_record(self._bus, message.project, message.sandbox)
            refusal = await self._refusal(message, known)
            if refusal is None:
                refusal = await self._store_new(message, known)
            return DONE if refusal is None else await self._reject(message, delivery, refusal)

    async def _accept(
        self,
        command: Envelope[SendMessage],
        delivery: Delivery,
        entry: NameEntry,
        known: SharedSandboxRecord | None,
    ) -> Outcome:
        """Store a message, or reject it if its sandbox has ended or too many messages wait.

        The message of a redelivered command may have been stored, and even delivered, before a relay was killed. So it
        is stored again, whatever the state of its sandbox. `InboxDelivery` then publishes its end.
        """
        if entry.claim is not None:
            return await self._store_again(self._message(command, entry.claim))
        refused = await self._refusal(accepted(command, delivery.at), known) or await self._excess(command.project)
        if refused is None:
            claim = await self._claim(command, delivery, entry)
            if isinstance(claim, Retry):
                return claim
            refused = await self._store_new(self._message(command, claim), known)
            if refused is None:
                return DONE
            await self._names.release(command.project, command.data.message, claim)
        return await self._reject(accepted(command, delivery.at), delivery, refused, str(command.id))

    async def _decide_approval(
        self, command: Envelope[AnswerApproval], delivery: Delivery, entry: NameEntry
    ) -> Outcome:
        """Decide an approval, and store the answer for the agent. It is retried while the inbox is full."""
        claim = entry.claim

        async def reserve() -> Retry | None:
            nonlocal claim
            claimed = claim or await self._claim(command, delivery, entry)
            claim = claim if isinstance(claimed, Retry) else claimed
            return claimed if isinstance(claimed, Retry) else None

        decided = await self._approval_handler.decide(command, claim.at if claim else delivery.at, reserve)
        if isinstance(decided, Retry):
            return decided
        message, refused = decided.message, decided.refusal
        if refused is not None:
            if claim is not None:
                await self._names.release(command.project, command.data.message, claim)
            return await self._reject(message, delivery, refused, str(command.id))
        source = self._source(command, claim) if claim else None
        message = message.model_copy(update={"source": source})
        return await (self._conclude(message) if decided.to_service else self._store_again(message))

    async def _conclude(self, message: InboxMessage) -> Outcome:
        """Publish the events of an answer to a service. The service gets the answer by the event of the decision."""
        now = datetime.now(UTC)
        await self._events.publish(message, BEGUN, queued(message), now)
        took = max(0.0, (now - message.sent_at).total_seconds() * 1000)
        await self._events.publish(message, ENDED, delivered(message, took), now)
        await self._events.publish(message, ACKNOWLEDGED, acknowledged(message), now)
        return DONE

    async def _claim(
        self, command: Envelope[SendMessage] | Envelope[AnswerApproval], delivery: Delivery, entry: NameEntry
    ) -> NameClaim | Retry:
        """Claim the free name of a command. Returns a retry if another command was faster, or if the bucket is full."""
        data = command.data
        reserved = reservation(data, (await self._names.usage(command.project)).names)
        unique = is_unique(data.message, delivery.at, reserved=reserved)
        claim = claim_of(data, delivery.stream_sequence, delivery.at).model_copy(update={"unique": unique})
        try:
            claimed = await self._names.claim(command.project, data.message, claim, entry, reserved)
        except StreamFullError:
            return _NAMES_FULL
        return claim if claimed else _CLAIMED_CONCURRENTLY

    def _message(self, command: Envelope[SendMessage], claim: NameClaim) -> InboxMessage:
        return accepted(command, claim.at, self._source(command, claim))

    def _source(self, command: Envelope[SendMessage] | Envelope[AnswerApproval], claim: NameClaim) -> str | None:
        """The source of the events of a message whose name is not unique. None if the name alone is the source."""
        if claim.unique:
            return None
        name = command.data.message
        return named_source(name, self._bus.ids.derive(claim.at, command.project, name, claim.sequence))

    def _source_of_agent(self, event: Envelope[AgentMessageSent], document: bytes) -> str:
        """The source of an agent's message, derived from its content, because its worker chooses the name freely."""
        digest = hashlib.sha256(document).hexdigest()
        return named_source(event.subject, self._bus.ids.derive(event.time, event.project, event.subject, digest))

    async def _refusal(self, message: InboxMessage, known: SharedSandboxRecord | None) -> ApprovalRefusal | None:
        """The refusal of a new message to this sandbox, or None."""
        no_recipient = ended(message.sandbox, known)
        if no_recipient is not None:
            return ApprovalRefusal(no_recipient.code, no_recipient.reason)
        if await self._inbox.waiting_in(message.project) >= self._max_in_project:
            return ApprovalRefusal(Code.REFUSED, too_many_of_project(message.project, self._max_in_project))
        return None

    async def _excess(self, project: str) -> ApprovalRefusal | None:
        usage = await self._names.usage(project)
        found = excess(project, usage.names, self._names.fill)
        return None if found is None else ApprovalRefusal(Code.REFUSED, found)

    async def _store_new(self, message: InboxMessage, known: SharedSandboxRecord | None) -> ApprovalRefusal | None:
        """Store a message that certainly was not stored before. Returns None, or the refusal if the inbox is full."""
        entry = None
        try:
            if self._dispatcher.serves((message.project, message.sandbox)):
                await self._inbox.store(message)
            else:
                entry = await self._inbox.store_first(message)
        except SubjectFullError:
            return ApprovalRefusal(Code.REFUSED, too_many(message.sandbox))
        await self._start_delivery(message, None if entry is None else FirstMessage(entry, known))
        return None

    async def _store_again(self, message: InboxMessage) -> Outcome:
        """Store a message that may be stored already. If the inbox is full, the command is retried, not rejected."""
        try:
            await self._inbox.store(message)
        except SubjectFullError:
            return _INBOX_FULL
        await self._start_delivery(message)
        return DONE

    async def _start_delivery(self, message: InboxMessage, first: FirstMessage | None = None) -> None:
        """Start delivery, and publish `message.queued` meanwhile: `RelayEvents` keeps a message's events in order."""
        self._dispatcher.wake((message.project, message.sandbox), first)
        await self._events.publish(message, BEGUN, queued(message), datetime.now(UTC))
        await self._inbox.count_ahead(message.project)

    async def _reject(
        self, message: InboxMessage, delivery: Delivery, refused: ApprovalRefusal, command_id: str | None = None
    ) -> Outcome:
        data = rejection(message, refused.reason, refused.code, command_id)
        await self._events.publish_rejection(message, delivery, data)
        return DONE
