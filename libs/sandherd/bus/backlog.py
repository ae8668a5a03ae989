"""How far a service's durable consumers are: asked of the broker, and measured."""

import asyncio
from collections.abc import Sequence
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.bus.together import end
from sandherd.contracts.streams import Consumer
from sandherd.telemetry.meters import Meters

_MEASURED_EVERY: Final = 5.0
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


class Backlog:
    """Measures what waits for a service. Every replica sees the same: who adds replicas up takes the largest."""

    def __init__(self, consumers: Sequence[Consumer], meters: Meters) -> None:
        self._consumers = consumers
        self._meters = meters

    async def watch(self, bus: Bus) -> None:
        """Look again and again, until cancelled. What does not answer keeps its last value."""
        while True:
            for consumer in self._consumers:
                await self._measure(bus, consumer)
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
        name = consumer.name
        self._meters.set("sandherd_consumer_pending", info.num_pending or 0, consumer=name)
        self._meters.set("sandherd_consumer_unacknowledged", info.num_ack_pending or 0, consumer=name)
        self._meters.set("sandherd_consumer_redelivered", info.num_redelivered or 0, consumer=name)
