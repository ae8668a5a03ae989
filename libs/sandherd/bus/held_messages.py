"""The messages of a consumer that a service holds: queued, being handled, or waiting to be tried again."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, BusError
from sandherd.bus.dead_letters import DeadLetters
from sandherd.bus.fair_queue import FairQueue, Lane
from sandherd.bus.intake import Intake
from sandherd.bus.lanes import lane_of
from sandherd.bus.outcomes import (
    DONE,
    BatchHandler,
    Counted,
    Dead,
    Delivery,
    Handler,
    Outcome,
    Retry,
    negative,
    outcome_of,
    read_delivery,
)
from sandherd.bus.secret_commands import erase_command
from sandherd.bus.source_limits import Limits
from sandherd.bus.together import end
from sandherd.contracts.errors import ContractError
from sandherd.contracts.streams import Consumer
from sandherd.telemetry import logs

Skip = Callable[[Delivery], bool]
"""Whether a message needs no handling: it is acknowledged before anything else is done with it."""
_CAPACITY: Final = 65_536
_CAPACITY_BYTES: Final = 128 * 1024 * 1024
"""While more messages or bytes wait here, nothing is pulled: the limits by rate keep one source far below that."""
_AT_ONCE: Final = 32  # dead letters of a batch
_LOOKED_EVERY: Final = 1.0
_log: Final = logs.get("consuming")


@dataclass(slots=True)
class Item:
    """A message that is held. `msg` is its latest delivery, `told_at` the time of the last progress acknowledgement."""

    msg: Msg
    delivery: Delivery
    lane: Lane
    told_at: float
    begun: bool = False


class HeldMessages:
    """Takes messages in, gives them to handlers lane by lane, and does what their outcomes say."""

    def __init__(
        self, bus: Bus, consumer: Consumer, counted: Counted | None, limits: Limits, skip: Skip | None
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._counted = counted or (lambda _consumer, _outcome, _amount: None)
        self._deferred = limits.deferred or (lambda _consumer: None)
        self._skip = skip or (lambda _delivery: False)
        self._dead = DeadLetters(bus, consumer, limits.dead_letters, limits.suppressed)
        self._intake = Intake(limits.rates)
        self._queue: FairQueue[Item] = FairQueue()
        self._items: dict[int, Item] = {}
        """By place in the stream: what comes again while it is held is only noted."""
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._left = asyncio.Event()
        self._timers: dict[int, asyncio.TimerHandle] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls, bus: Bus, consumer: Consumer, counted: Counted | None, limits: Limits, skip: Skip | None = None
    ) -> AsyncIterator["HeldMessages"]:
        """Extends the deadlines of held messages; at the end those that were not begun are returned."""
        held = cls(bus, consumer, counted, limits, skip)
        keeping = asyncio.create_task(held._keep())
        try:
            yield held
        finally:
            await end([keeping])
            await held._hand_back()

    # --- taking in ---------------------------------------------------------------------------------------------

    async def accept(self, messages: Sequence[Msg]) -> None:
        """Queue what was pulled, or hand it back. Returns when there is room for more."""
        for msg in messages:
            await self._accept(msg)
        while len(self._items) >= _CAPACITY or self._bytes >= _CAPACITY_BYTES:
            self._left.clear()
            await self._left.wait()

    async def _accept(self, msg: Msg) -> None:
        delivery = read_delivery(msg)
        held = self._items.get(delivery.stream_sequence)
        if held is not None:
            held.msg, held.told_at = msg, time.monotonic()
            return
        if self._skip(delivery):
            self._counted(self._consumer.name, DONE, 1)
            await self._answer(msg, b"+ACK")
            return
        lane = lane_of(delivery)
        delay = self._delay(lane, delivery)
        if delay:
            self._deferred(self._consumer.name)
            await self._answer(msg, negative(delay))
            return
        item = Item(msg, delivery, lane, time.monotonic())
        self._items[delivery.stream_sequence] = item
        self._bytes += len(delivery.data)
        self._queue.put(lane, item)
        self._arrived.set()

    def _delay(self, lane: Lane, delivery: Delivery) -> float:
        first = delivery.deliveries == 1  # one that comes again has waited already, or was with another replica
        return self._intake.delay(lane, delivery.at, len(delivery.data), time.time()) if first else 0.0

    # --- handling ----------------------------------------------------------------------------------------------

    async def next(self) -> Item:
        """The next message whose lane is free; the lane is busy until it is answered."""
        while (item := self._queue.take()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        item.begun = True
        return item

    async def next_batch(self, most: int) -> list[Item]:
        """At least one message and no more than `most`, project by project and lane by lane in turn."""
        found = [await self.next()]
        self._queue.release(found[0].lane)
        while len(found) < most and (item := self._queue.take()) is not None:
            item.begun = True
            self._queue.release(item.lane)
            found.append(item)
        return found

    async def handle_one(self, item: Item, handle: Handler) -> None:
        """Handle one message. One that is to be tried again keeps its lane waiting until then."""
        try:
            outcome = await handle(item.delivery)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises becomes an outcome: none is swallowed
            outcome = outcome_of(error, item.delivery.deliveries)
            self._log_failure(item.delivery, outcome, error)
        if isinstance(outcome, Retry):
            self._counted(self._consumer.name, outcome, 1)
            self._try_again(item, outcome.after)
            return
        await self._settle(item, outcome)
        self._queue.release(item.lane)
        self._arrived.set()

    def _try_again(self, item: Item, after: float) -> None:
        """Its lane is not released: what came behind it must not take effect before it."""
        item.begun = False
        number = item.delivery.stream_sequence
        self._timers[number] = asyncio.get_running_loop().call_later(after, self._again, number)

    def _again(self, number: int) -> None:
        del self._timers[number]
        item = self._items[number]
        item.delivery = item.delivery._replace(deliveries=item.delivery.deliveries + 1)
        self._queue.put_back(item.lane, item)
        self._arrived.set()

    async def handle_batch(self, items: list[Item], handle: BatchHandler) -> None:
        """Handle a batch. If the handler fails as a whole, each message is tried alone."""
        outcomes: Sequence[Outcome]
        try:
            outcomes = await handle([item.delivery for item in items])
        except Exception as error:  # noqa: BLE001  # becomes the outcome of each of its messages
            if len(items) > 1:
                # One message may have broken the batch: alone, each is judged for itself.
                for item in items:
                    await self.handle_batch([item], handle)
                return
            outcomes = [outcome_of(error, items[0].delivery.deliveries)]
            self._log_failure(items[0].delivery, outcomes[0], error)
        done = [item for item, outcome in zip(items, outcomes, strict=True) if outcome is DONE]
        for item in done:
            await self._answer(item.msg, b"+ACK")
            self._forget(item)
        self._counted(self._consumer.name, DONE, len(done))  # once: a label's lookup for each costs as much as an ack
        others = [(item, outcome) for item, outcome in zip(items, outcomes, strict=True) if outcome is not DONE]
        for start in range(0, len(others), _AT_ONCE):
            await asyncio.gather(*(self._settle(*other) for other in others[start : start + _AT_ONCE]))

    # --- answering ---------------------------------------------------------------------------------------------

    async def _settle(self, item: Item, outcome: Outcome) -> None:
        """Tell the broker. A message goes to DEAD first, and is given up only when it is safe there."""
        self._counted(self._consumer.name, outcome, 1)
        match outcome:
            case Retry(after=after):
                await self._answer(item.msg, negative(after))
            case Dead(problem=problem):
                await self._dead.add(item.lane, item.delivery, problem, time.monotonic())
                await erase_command(self._bus, item.delivery)
                await self._answer(item.msg, b"+TERM " + problem.code.encode())
            case _:
                await erase_command(self._bus, item.delivery)
                await self._answer(item.msg, b"+ACK")
        self._forget(item)

    def _forget(self, item: Item) -> None:
        del self._items[item.delivery.stream_sequence]
        self._bytes -= len(item.delivery.data)
        self._left.set()

    async def _answer(self, msg: Msg, verdict: bytes) -> None:
        try:
            await self._bus.client.publish(msg.reply, verdict)
        except nats.errors.Error as error:  # nothing is lost by it: what was not answered is delivered again
            _log.warning("could not answer a delivery", subject=msg.subject, error=repr(error))

    async def _keep(self) -> None:
        """Tell the broker of what waits here, before it delivers that again; and store summaries that are due."""
        while True:
            await asyncio.sleep(_LOOKED_EVERY)
            now = time.monotonic()
            for item in list(self._items.values()):
                if now - item.told_at > self._consumer.ack_wait / 3 and not item.begun:
                    item.told_at = now
                    await self._answer(item.msg, b"+WPI")
            try:
                await self._dead.summarise(now)
            except BusError as error:
                _log.warning("a summary of dead letters was not stored", error=str(error))

    async def _hand_back(self) -> None:
        """Others get at once what nobody has begun here."""
        for timer in self._timers.values():
            timer.cancel()
        if self._bus.connected:
            for item in self._items.values():
                if not item.begun:
                    await self._answer(item.msg, b"-NAK")

    def _log_failure(self, delivery: Delivery, outcome: Outcome, error: Exception) -> None:
        if not isinstance(error, ContractError):
            _log.error("handler failed", subject=delivery.subject, outcome=type(outcome).__name__, exc_info=error)
