"""event-ingest's gauges: its lag behind the stream, and the number of missing events."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from event_ingest.database import Database
from event_ingest.ingest import CONSUMER
from event_ingest.queries.audit import count_missing, count_unstored
from event_ingest.queries.stream_reader import read_messages, stored_through
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.errors import ContractError
from sandherd.contracts.streams import BY_CONSUMER
from sandherd.service.service import Service

_LAG_INTERVAL_SECONDS: Final = 5.0
_GAPS_INTERVAL_SECONDS: Final = 60.0
_RECOUNT_DELAY_SECONDS: Final = 5.0
_UNAVAILABLE_ERRORS: Final = (*BROKER_ERRORS, ContractError)


class IngestGauges:
    """Sets the gauges periodically. While the broker or the database is unavailable, a gauge keeps its last value."""

    def __init__(self, service: Service, database: Database) -> None:
        self._service = service
        self._database = database

    async def run(self) -> None:
        """Measure until cancelled."""
        await run_until_first(
            _repeat(self._measure_lag, _LAG_INTERVAL_SECONDS), _repeat(self.measure_gaps, _GAPS_INTERVAL_SECONDS)
        )

    async def _measure_lag(self) -> None:
        bus, meters = self._service.bus, self._service.meters
        unstored = await count_unstored(bus)
        meters.set("sandherd_ingest_lag_messages", unstored)
        meters.set("sandherd_ingest_oldest_seconds", await oldest_age(bus, datetime.now(UTC)) if unstored else 0)

    async def measure_gaps(self) -> None:
        """Count missing events; if there are any, count again after some seconds, and report the lower number.

        Batches are stored concurrently, and a later one may be committed first.
        """
        missing = await self._count_missing()
        if missing:
            await asyncio.sleep(_RECOUNT_DELAY_SECONDS)
            missing = min(missing, await self._count_missing())
        self._service.meters.set("sandherd_ingest_gaps", missing)

    async def _count_missing(self) -> int:
        async with self._database.reading() as connection:
            return await count_missing(connection)


async def oldest_age(bus: Bus, now: datetime) -> float:
    """The age in seconds of the oldest event that is not stored; 0 if all are stored. Raises nats-py's errors."""
    stream = BY_CONSUMER[CONSUMER].stream
    oldest = await read_messages(bus, stream, ">", first=await stored_through(bus) + 1, limit=1, max_bytes=1)
    return max(0.0, (now - oldest[0].at).total_seconds()) if oldest else 0.0


async def _repeat(measure: Callable[[], Awaitable[None]], interval: float) -> None:
    while True:
        measurement = asyncio.ensure_future(measure())
        try:
            # Awaited as a task: inside it, nats-py may swallow a cancellation, and stopping would take seconds.
            await asyncio.wait([measurement])
            with suppress(*_UNAVAILABLE_ERRORS):
                measurement.result()
        finally:
            await cancel_and_wait([measurement])
        await asyncio.sleep(interval)
