"""How far a service's durable consumers are: asked of the broker, and measured."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.bus.together import end
from sandherd.contracts.requests import Waiting
from sandherd.contracts.streams import Consumer
from sandherd.telemetry.meters import Meters

_MEASURED_EVERY: Final = 5.0
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


class Backlog:
    """Measures what waits for a service. Every replica sees the same: who adds replicas up takes the largest."""

    def __init__(self, consumers: Sequence[Consumer], meters: Meters) -> None:
        self._consumers = consumers
        self._meters = meters
        self._waiting: dict[str, Waiting] = {}
        self._moved: dict[str, tuple[int, float]] = {}
        """How far each consumer was, and since when it has not come further with something left to do."""

    async def look(self, bus: Bus) -> list[Waiting]:
        """What waits now; of a consumer that does not answer, what waited when it did."""
        for consumer in self._consumers:
            await self._measure(bus, consumer)
        return [*self._waiting.values()]

    async def watch(self, bus: Bus) -> None:
        """Look again and again, until cancelled. What does not answer keeps its last value."""
        while True:
            await self.look(bus)
            await asyncio.sleep(_MEASURED_EVERY)

    async def _measure(self, bus: Bus, consumer: Consumer) -> None:
        asking = asyncio.create_task(bus.js.consumer_info(consumer.stream, consumer.name))
        try:
            # Waited for from outside: within it nats-py may swallow a cancellation, and a stop would take seconds.
            await asyncio.wait([asking])
            info = asking.result()
        except _UNANSWERED:
            return  # away, which other parts say of themselves
        finally:
            await end([asking])
        name, pending, unacknowledged = consumer.name, info.num_pending or 0, info.num_ack_pending or 0
        still = self._still(name, info.ack_floor.stream_seq if info.ack_floor else 0, idle=not pending + unacknowledged)
        self._waiting[name] = Waiting(
            consumer=name, pending=pending, unacknowledged=unacknowledged, still_seconds=round(still, 1)
        )
        self._meters.set("sandherd_consumer_pending", pending, consumer=name)
        self._meters.set("sandherd_consumer_unacknowledged", unacknowledged, consumer=name)
        self._meters.set("sandherd_consumer_redelivered", info.num_redelivered or 0, consumer=name)

    def _still(self, name: str, done: int, *, idle: bool) -> float:
        """For how long the first message that is not handled is known to have waited. `done` is the one before it."""
        before, since = self._moved.get(name, (-1, 0.0))
        if idle or before != done:
            since = time.monotonic()
        self._moved[name] = done, since
        return time.monotonic() - since
