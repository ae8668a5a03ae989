"""The inbox: receives messages as requests, passes them to the running agent, and replies with a receipt."""

import asyncio
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from pydantic import ValidationError

from sandherd.bus.connection import Bus
from sandherd.contracts.events.agent import AgentInterrupted
from sandherd.contracts.events.conversation import AgentMessageInjected
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.subjects import DELIVER
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter, now
from sandherd_worker.harnesses.base import MessageRefusedError, check_in_time
from sandherd_worker.misdirected_replies import MisdirectedReplies
from sandherd_worker.spool_disk import SpoolError


class DeliveredMessages:
    """A file with the ids of injected messages, one per line. An incomplete last line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids = set(path.read_text(errors="replace").split("\n")[:-1]) if path.exists() else set()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, message: str) -> bool:
        return message in self._ids

    def add(self, message: str) -> None:
        """Store a message's id durably. Raises `OSError`."""
        with self._path.open("ab") as file:
            file.write(f"{message}\n".encode())
            file.flush()
            os.fdatasync(file.fileno())
        self._ids.add(message)


_log: Final = logs.get("inbox")


class MessageTaker(Protocol):
    """The recipient of messages: the agent's harness."""

    async def inject(self, message: InboxMessage, /) -> None:
        """Pass on a message. Raises `MessageRefusedError`."""

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop the current turn because of this message, which is passed on later."""


class Inbox:
    """Serves the deliveries of one sandbox one at a time, so that their order is preserved.

    A message that is received before the agent is ready waits. Once the agent has ended, messages are rejected with
    a reason, and so is a message that expires while it waits. A redelivered message gets the same receipt as
    before.

    Two operations do not wait for earlier messages, because these may wait for them: answers to approvals, which have
    their own order, and the stop of the current turn for an interrupt.
    """

    def __init__(
        self, assignment: Assignment, emitter: Emitter, injected: DeliveredMessages, clock: Callable[[], datetime] = now
    ) -> None:
        self._assignment = assignment
        self._emitter = emitter
        self._injected = injected
        self._clock = clock
        self.misdirected = MisdirectedReplies()
        self._rejected: dict[str, Receipt] = {}
        self._agent: asyncio.Future[MessageTaker] = asyncio.get_running_loop().create_future()
        self._delivery_lock = asyncio.Lock()
        self._approval_lock = asyncio.Lock()
        self._delivery_tasks: set[asyncio.Task[None]] = set()
        self._received: set[str] = set()
        self._rejecting_agent: MessageTaker | None = None

    def ready(self, taker: MessageTaker) -> None:
        """Pass messages to this agent from now on."""
        if not self._agent.done():
            self._agent.set_result(taker)

    def close(self, reason: str) -> None:
        """Reject messages from now on, including those that wait."""
        self._rejecting_agent = self._rejecting_agent or _RejectingAgent(reason)
        self.ready(self._rejecting_agent)

    async def serve(self, bus: Bus) -> None:
        """Subscribe to deliveries on this connection. Returns at once; the subscription ends with the connection."""
        subject = DELIVER.fill(project=self._assignment.project, sandbox=self._assignment.sandbox)
        await bus.client.subscribe(subject, cb=self._on_delivery)

    async def deliver(self, document: bytes) -> Receipt | None:
        """Pass a message to the agent once, and return the receipt. None if it is not a message to this sandbox."""
        try:
            message = InboxMessage.model_validate_json(document)
        except ValidationError as error:
            fields = sorted({".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False)})
            _log.warning("invalid message ignored", fields=fields)
            return None
        if (message.project, message.sandbox) != (self._assignment.project, self._assignment.sandbox):
            _log.warning("message for another sandbox ignored", message=message.message)
            return None
        await self._stop_waiting_turn(message)
        async with self._approval_lock if message.message_type == "approval" else self._delivery_lock:
            return self._earlier_receipt(message) or await self._inject(message)

    def _earlier_receipt(self, message: InboxMessage) -> Receipt | None:
        """The receipt that was already sent for a message."""
        if _identity(message) in self._injected:
            return Receipt(message=message.message, outcome="acknowledged")
        return self._rejected.get(_identity(message))

    async def _stop_waiting_turn(self, message: InboxMessage) -> None:
        """Stop the current turn at once if this is a new interrupt and an earlier message still waits for the agent."""
        is_repeated = _identity(message) in self._received
        self._received.add(_identity(message))
        if message.message_type != "interrupt" or is_repeated or self._clock() >= message.expires_at:
            return
        if self._delivery_lock.locked() and self._agent.done():
            await self._agent.result().interrupt(message.message)

    async def _on_delivery(self, delivery: Msg) -> None:
        """Handle a delivery in a task; the locks preserve the order. One without data only checks for a response."""
        if self.misdirected.ignores(delivery):
            return
        task = asyncio.create_task(self._reply(delivery))
        self._delivery_tasks.add(task)
        task.add_done_callback(self._delivery_tasks.discard)

    async def _reply(self, delivery: Msg) -> None:
        try:
            if not delivery.data:
                await delivery.respond(b"")
                return
            receipt = await self.deliver(delivery.data)
            if receipt is not None:
                await delivery.respond(receipt.model_dump_json(exclude_none=True).encode())
        except (NatsError, SpoolError, OSError) as error:
            _log.warning("delivery not acknowledged", error=repr(error))

    async def _inject(self, message: InboxMessage) -> Receipt:
        taker = await self._agent
        try:
            check_in_time(message, self._clock())
            await (self._rejecting_agent or taker).inject(message)
        except MessageRefusedError as error:
            # A sender that got no receipt in time repeats the message; it must get the same receipt as before.
            agent_ended = self._rejecting_agent is not None
            rejected = Receipt(message=message.message, outcome="rejected", reason=str(error), agent_gone=agent_ended)
            return self._rejected.setdefault(_identity(message), rejected)
        self._injected.add(_identity(message))
        await self._publish(message)
        return Receipt(message=message.message, outcome="acknowledged")

    async def _publish(self, message: InboxMessage) -> None:
        if message.message_type == "interrupt":
            await self._emitter.emit(AgentInterrupted(reason=message.content, sender_id=message.sender_id))
        await self._emitter.emit(
            AgentMessageInjected(
                message_type=message.message_type,
                content=message.content,
                content_length=len(message.content),
                sender_id=message.sender_id,
                message_id=message.message,
                intervention_number=len(self._injected),
            )
        )


def _identity(message: InboxMessage) -> str:
    """The identity of a message for this worker. Its id alone is not unique: senders may use an id again."""
    kind = "approval" if message.message_type == "approval" else "message"
    return f"{kind}.{message.source or f'{message.message}.{message.sent_at.isoformat()}'}"


class _RejectingAgent:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def inject(self, _message: InboxMessage) -> None:
        raise MessageRefusedError(self._reason)

    async def interrupt(self, _message: str | None = None, /) -> None:
        return
