"""The inbox: messages come as requests, reach the agent in the middle of what it does, and the reply is the receipt."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from pydantic import ValidationError

from sandherd.bus.connection import Bus
from sandherd.contracts.delivery import InboxMessage, Receipt
from sandherd.contracts.events.agent import AgentInterrupted, AgentMessageInjected
from sandherd.contracts.subjects import DELIVER
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter, now
from sandherd_worker.harnesses.base import CannotTakeError, check_in_time
from sandherd_worker.injected import Injected
from sandherd_worker.spool_disk import SpoolError

_log: Final = logs.get("inbox")


class Taker(Protocol):
    """Who is given the messages: the agent's harness."""

    async def inject(self, message: InboxMessage, /) -> None:
        """Take it. Raises `CannotTakeError`."""

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop what it is doing now, for the sake of this message, which is given to it later."""


class Inbox:
    """Serves the deliveries of one sandbox, one after the other, so that their order is kept.

    A message that comes before the agent is ready waits. Once the agent is gone, messages are rejected with a reason,
    and so is what expires while it waits. What was answered once is answered the same however often it comes.
    Two don't wait for those before them, as these may wait for them: an answer to an approval, which has an order of
    its own, and what is stopped by an interrupt.
    """

    def __init__(
        self, assignment: Assignment, emitter: Emitter, injected: Injected, clock: Callable[[], datetime] = now
    ) -> None:
        self._who = assignment
        self._emitter = emitter
        self._injected = injected
        self._clock = clock
        self._rejected: dict[str, Receipt] = {}
        self._taker: asyncio.Future[Taker] = asyncio.get_running_loop().create_future()
        self._turn = asyncio.Lock()
        self._answers = asyncio.Lock()
        self._taking: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()
        self._nobody: Taker | None = None

    def ready(self, taker: Taker) -> None:
        """From now on the agent can take messages."""
        if not self._taker.done():
            self._taker.set_result(taker)

    def close(self, reason: str) -> None:
        """From now on messages are rejected; those that wait are, too."""
        self._nobody = self._nobody or _Nobody(reason)
        self.ready(self._nobody)

    async def serve(self, bus: Bus) -> None:
        """Take deliveries from this connection. Returns at once; the connection's end ends it."""
        subject = DELIVER.fill(project=self._who.project, sandbox=self._who.sandbox)
        await bus.client.subscribe(subject, cb=self._on_delivery)

    async def take(self, document: bytes) -> Receipt | None:
        """Give a message to the agent once, and return the receipt. None for what is no message to this sandbox."""
        try:
            message = InboxMessage.model_validate_json(document)
        except ValidationError as error:
            fields = sorted({".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False)})
            _log.warning("a delivery that is no message", fields=fields)
            return None
        if (message.project, message.sandbox) != (self._who.project, self._who.sandbox):
            _log.warning("a message to another sandbox", message=message.message)
            return None
        await self._stop_what_waits(message)
        async with self._answers if message.message_type == "approval" else self._turn:
            return self._answered(message.message) or await self._inject(message)

    def _answered(self, message: str) -> Receipt | None:
        """The receipt that a message has been given before."""
        return self._injected.receipt(message) or self._rejected.get(message)

    async def _stop_what_waits(self, message: InboxMessage) -> None:
        """An interrupt behind a message that the agent has not taken yet stops the turn for both; once."""
        known = message.message in self._seen
        self._seen.add(message.message)
        if message.message_type != "interrupt" or known or self._clock() >= message.expires_at:
            return
        if self._turn.locked() and self._taker.done():
            await self._taker.result().interrupt(message.message)

    async def _on_delivery(self, delivery: Msg) -> None:
        """Take it beside those that are under way; the order is the lock's. An empty one only asks if we are there."""
        task = asyncio.create_task(self._reply(delivery))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _reply(self, delivery: Msg) -> None:
        try:
            if not delivery.data and delivery.reply:
                await delivery.respond(b"")
                return
            receipt = await self.take(delivery.data)
            if receipt is not None and delivery.reply:
                await delivery.respond(receipt.model_dump_json(exclude_none=True).encode())
        except (NatsError, SpoolError, OSError) as error:
            _log.warning("a delivery was not answered", error=repr(error))

    async def _inject(self, message: InboxMessage) -> Receipt:
        taker = await self._taker
        try:
            check_in_time(message, self._clock())
            await (self._nobody or taker).inject(message)
        except CannotTakeError as error:
            # Whoever was not answered in time asks again, and what it is told must be what came of the message.
            gone = self._nobody is not None
            rejected = Receipt(message=message.message, outcome="rejected", reason=str(error), agent_gone=gone)
            return self._rejected.setdefault(message.message, rejected)
        self._injected.add(message.message)
        await self._say(message)
        return Receipt(message=message.message, outcome="acknowledged")

    async def _say(self, message: InboxMessage) -> None:
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


class _Nobody:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def inject(self, _message: InboxMessage) -> None:
        raise CannotTakeError(self._reason)

    async def interrupt(self, _message: str | None = None, /) -> None:
        return
