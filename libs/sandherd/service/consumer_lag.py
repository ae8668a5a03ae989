"""Requests the lag of a service's durable consumers from the broker, and exports it as metrics."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.concurrency import cancel_and_wait, sleep_aligned
from sandherd.contracts.requests import ConsumerBacklog
from sandherd.contracts.streams import Consumer
from sandherd.telemetry.meters import Meters

_MEASURE_INTERVAL_SECONDS: Final = 5.0


class ConsumerLag:
    """Measures the lag of a service's consumers. All replicas report the same lag, so use the maximum, not the sum."""

    def __init__(self, consumers: Sequence[Consumer], meters: Meters) -> None:
        self._consumers = consumers
        self._meters = meters
        self._backlogs: dict[str, ConsumerBacklog] = {}
        self._ack_floors: dict[str, tuple[int, float]] = {}
        """By consumer: its ack floor, and the monotonic second since which it has messages and the ack floor is the
        same."""

    async def read(self, bus: Bus) -> list[ConsumerBacklog]:
        """The current backlog of each consumer. If a consumer does not respond, its last known backlog is returned."""
        for consumer in self._consumers:
            await self._measure(bus, consumer)
        return [*self._backlogs.values()]

    async def watch(self, bus: Bus) -> None:
        """Measure repeatedly, until cancelled. The metrics of a consumer that does not respond stay as they are."""
        while True:
            await self.read(bus)
            await sleep_aligned(_MEASURE_INTERVAL_SECONDS)

    async def _measure(self, bus: Bus, consumer: Consumer) -> None:
        request = asyncio.create_task(bus.js.consumer_info(consumer.stream, consumer.name))
        try:
            # In a separate task: nats-py may swallow a cancellation, and stopping would take seconds.
            await asyncio.wait([request])
            info = request.result()
        except BROKER_ERRORS:
            return  # the broker is unavailable: the health check of the connection reports it
        finally:
            await cancel_and_wait([request])
        name, pending, unacknowledged = consumer.name, info.num_pending or 0, info.num_ack_pending or 0
        still = self._seconds_without_progress(
            name, info.ack_floor.stream_seq if info.ack_floor else 0, idle=not pending + unacknowledged
        )
        self._backlogs[name] = ConsumerBacklog(
            consumer=name, pending=pending, unacknowledged=unacknowledged, still_seconds=round(still, 1)
        )
        self._meters.set("sandherd_consumer_pending", pending, consumer=name)
        self._meters.set("sandherd_consumer_unacknowledged", unacknowledged, consumer=name)
        self._meters.set("sandherd_consumer_redelivered", info.num_redelivered or 0, consumer=name)

    def _seconds_without_progress(self, name: str, ack_floor: int, *, idle: bool) -> float:
        """Seconds since the ack floor has changed, which is how long the first unhandled message waits. 0 if idle."""
        before, since = self._ack_floors.get(name, (-1, 0.0))
        if idle or before != ack_floor:
            since = time.monotonic()
        self._ack_floors[name] = ack_floor, since
        return time.monotonic() - since
