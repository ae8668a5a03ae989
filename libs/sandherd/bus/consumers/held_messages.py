"""Messages that a service has pulled and not acknowledged yet: queued, being handled, or waiting for a retry."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, BusError
from sandherd.bus.consumers.dead_letters import DeadLetterStore
from sandherd.bus.consumers.fair_queue import FairQueue, Lane, lane_of
from sandherd.bus.consumers.intake import Intake, SourceLimits
from sandherd.bus.consumers.outcomes import (
    DONE,
    BatchHandler,
    Dead,
    Delivery,
    Handler,
    OnOutcome,
    Outcome,
    Retry,
    negative_acknowledgement,
    outcome_of,
    read_delivery,
)
from sandherd.bus.consumers.secret_commands import erase_command
from sandherd.concurrency import cancel_and_wait, sleep_aligned
from sandherd.contracts.errors import ContractError
from sandherd.contracts.streams import Consumer
from sandherd.telemetry import logs

Skip = Callable[[Delivery], bool]
"""A function that returns whether a message needs no handling, and is acknowledged at once."""
_MAX_MESSAGES: Final = 65_536
_MAX_BYTES: Final = 128 * 1024 * 1024
"""While this number of messages or bytes is held, no message is pulled. The rate limit of a source is far lower."""
OVERHEAD_BYTES: Final = 2048
"""Memory of a held message without its payload, as measured: its Python objects, subject, headers and lane."""
_PARALLEL_DEAD_LETTERS: Final = 32
_CHECK_SECONDS: Final = 1.0
_log: Final = logs.get("held_messages")


@dataclass(slots=True)
class HeldMessage:
    """A held message. `msg` is its latest delivery; `progress_at` is the monotonic second of its last `+WPI`."""

    msg: Msg
    delivery: Delivery
    lane: Lane
    progress_at: float
    is_started: bool = False


class HeldMessages:
    """Accepts messages, passes them to handlers, in order within each lane, and acknowledges them by their outcomes."""

    def __init__(
        self, bus: Bus, consumer: Consumer, counted: OnOutcome | None, limits: SourceLimits, skip: Skip | None
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._counted = counted or (lambda _consumer, _outcome, _amount: None)
        self._deferred = limits.deferred or (lambda _consumer: None)
        self._skip = skip or (lambda _delivery: False)
        self._dead = DeadLetterStore(bus, consumer, limits.dead_letters, limits.suppressed)
        self._intake = Intake(limits.rates)
        self._queue: FairQueue[HeldMessage] = FairQueue()
        self._items: dict[int, HeldMessage] = {}
        """The held messages by stream sequence. The redelivery of a held message only replaces its `msg`."""
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._space_freed = asyncio.Event()
        self._timers: dict[int, asyncio.TimerHandle] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls, bus: Bus, consumer: Consumer, counted: OnOutcome | None, limits: SourceLimits, skip: Skip | None = None
    ) -> AsyncIterator["HeldMessages"]:
        """A context that extends the ack deadlines of queued messages, and returns unstarted ones at its end."""
        held = cls(bus, consumer, counted, limits, skip)
        extending = asyncio.create_task(held._extend_deadlines())
        try:
            yield held
        finally:
            await cancel_and_wait([extending])
            await held._return_unstarted()

    # --- accepting ---------------------------------------------------------------------------------------------

    async def accept(self, messages: Sequence[Msg]) -> None:
        """Queue pulled messages, or return them to the broker. Returns when there is space for more."""
        for msg in messages:
            await self._accept(msg)
        while len(self._items) >= _MAX_MESSAGES or self._bytes >= _MAX_BYTES:
            self._space_freed.clear()
            await self._space_freed.wait()

    async def _accept(self, msg: Msg) -> None:
        delivery = read_delivery(msg)
        known_message = self._items.get(delivery.stream_sequence)
        if known_message is not None:
            known_message.msg, known_message.progress_at = msg, time.monotonic()
            return
        if self._skip(delivery):
            self._counted(self._consumer.name, DONE, 1)
            await self._send_ack(msg, b"+ACK")
            return
        lane = lane_of(delivery)
        delay = self._delay(lane, delivery)
        if delay:
            self._deferred(self._consumer.name)
            await self._send_ack(msg, negative_acknowledgement(delay))
            return
        item = HeldMessage(msg, delivery, lane, time.monotonic())
        self._items[delivery.stream_sequence] = item
        self._bytes += OVERHEAD_BYTES + len(delivery.data)
        self._queue.put(lane, item)
        self._arrived.set()

    def _delay(self, lane: Lane, delivery: Delivery) -> float:
        first = delivery.deliveries == 1  # a redelivered message was delayed before, or held by another replica
        return self._intake.delay(lane, delivery.at, len(delivery.data), time.time()) if first else 0.0

    # --- handling ----------------------------------------------------------------------------------------------

    async def next(self) -> HeldMessage:
        """The next message whose lane is free. The lane is busy until the message is acknowledged."""
        while (item := self._queue.take()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        item.is_started = True
        return item

    async def next_batch(self, limit: int) -> list[HeldMessage]:
        """The next messages, from one to `limit`. Projects and lanes take turns."""
        items = [await self.next()]
        self._queue.release(items[0].lane)
        while len(items) < limit and (item := self._queue.take()) is not None:
            item.is_started = True
            self._queue.release(item.lane)
            items.append(item)
        return items

    async def handle_one(self, item: HeldMessage, handle: Handler) -> None:
        """Handle one message. If it is retried later, its lane waits until then."""
        try:
            outcome = await handle(item.delivery)
        except Exception as error:  # noqa: BLE001  # every exception of a handler becomes an outcome
            outcome = outcome_of(error, item.delivery.deliveries)
            self._log_failure(item.delivery, outcome, error)
        if isinstance(outcome, Retry):
            self._counted(self._consumer.name, outcome, 1)
            self._schedule_retry(item, outcome.after)
            return
        await self._acknowledge(item, outcome)
        self._queue.release(item.lane)
        self._arrived.set()

    def _schedule_retry(self, item: HeldMessage, after: float) -> None:
        """Schedule a retry. Its lane is not released, because later messages must not take effect before it."""
        item.is_started = False
        number = item.delivery.stream_sequence
        self._timers[number] = asyncio.get_running_loop().call_later(after, self._retry, number)

    def _retry(self, number: int) -> None:
        del self._timers[number]
        item = self._items[number]
        item.delivery = item.delivery._replace(deliveries=item.delivery.deliveries + 1)
        self._queue.put_back(item.lane, item)
        self._arrived.set()

    async def handle_batch(self, items: list[HeldMessage], handle: BatchHandler) -> None:
        """Handle a batch. If the handler raises, each message is handled alone."""
        outcomes: Sequence[Outcome]
        try:
            outcomes = await handle([item.delivery for item in items])
        except Exception as error:  # noqa: BLE001  # becomes the outcome of each of its messages
            if len(items) > 1:
                # One message may have caused the failure, so each is handled alone and gets its own outcome.
                for item in items:
                    await self.handle_batch([item], handle)
                return
            outcomes = [outcome_of(error, items[0].delivery.deliveries)]
            self._log_failure(items[0].delivery, outcomes[0], error)
        done_items = [item for item, outcome in zip(items, outcomes, strict=True) if outcome is DONE]
        await self._send_acks(done_items, b"+ACK")
        for item in done_items:
            self._remove(item)
        self._counted(self._consumer.name, DONE, len(done_items))  # one call, because each costs as much time as an ack
        others = [(item, outcome) for item, outcome in zip(items, outcomes, strict=True) if outcome is not DONE]
        for start in range(0, len(others), _PARALLEL_DEAD_LETTERS):
            await asyncio.gather(
                *(self._acknowledge(*other) for other in others[start : start + _PARALLEL_DEAD_LETTERS])
            )

    # --- acknowledging -----------------------------------------------------------------------------------------

    async def _acknowledge(self, item: HeldMessage, outcome: Outcome) -> None:
        """Acknowledge a message by its outcome. If it can't be handled, store it in DEAD before it is terminated."""
        self._counted(self._consumer.name, outcome, 1)
        match outcome:
            case Retry(after=after):
                await self._send_ack(item.msg, negative_acknowledgement(after))
            case Dead(problem=problem):
                await self._dead.add(item.lane, item.delivery, problem, time.monotonic())
                await erase_command(self._bus, item.delivery)
                await self._send_ack(item.msg, b"+TERM " + problem.code.encode())
            case _:
                await erase_command(self._bus, item.delivery)
                await self._send_ack(item.msg, b"+ACK")
        self._remove(item)

    def _remove(self, item: HeldMessage) -> None:
        del self._items[item.delivery.stream_sequence]
        self._bytes -= OVERHEAD_BYTES + len(item.delivery.data)
        self._space_freed.set()

    async def _send_ack(self, msg: Msg, ack: bytes) -> None:
        try:
            await self._bus.client.publish(msg.reply, ack)
        except nats.errors.Error as error:  # nothing is lost: an unacknowledged message is redelivered
            _log.warning("delivery not acknowledged", subject=msg.subject, error=repr(error))

    async def _send_acks(self, items: Sequence[HeldMessage], ack: bytes) -> None:
        """Send this acknowledgement for each of the messages, in one write to the connection."""
        if not items:
            return
        try:
            await self._bus.client.publish_each([item.msg.reply for item in items], ack)
        except nats.errors.Error as error:  # nothing is lost: unacknowledged messages are redelivered
            _log.warning("delivery not acknowledged", subject=items[0].msg.subject, error=repr(error))

    async def _extend_deadlines(self) -> None:
        """Send progress acknowledgements (`+WPI`) for queued messages in time, and store summaries of dead letters."""
        while True:
            await sleep_aligned(_CHECK_SECONDS)
            now = time.monotonic()
            since = now - self._consumer.ack_wait / 3
            due = [item for item in self._items.values() if item.progress_at < since and not item.is_started]
            for item in due:
                item.progress_at = now
            await self._send_acks(due, b"+WPI")
            try:
                await self._dead.summarise(now)
            except BusError as error:
                _log.warning("dead letter summary not stored", error=str(error))

    async def _return_unstarted(self) -> None:
        """Return unstarted messages to the broker, so that other replicas receive them at once."""
        for timer in self._timers.values():
            timer.cancel()
        if self._bus.connected:
            await self._send_acks([item for item in self._items.values() if not item.is_started], b"-NAK")

    def _log_failure(self, delivery: Delivery, outcome: Outcome, error: Exception) -> None:
        if not isinstance(error, ContractError):
            _log.error("handler failed", subject=delivery.subject, outcome=type(outcome).__name__, exc_info=error)
