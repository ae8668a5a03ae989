"""What event-ingest's gauges show: how far it is behind the stream, and whether anything is missing."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import nats.errors
import nats.js.errors

from event_ingest.answers.auditing import count_lacking, count_unstored
from event_ingest.answers.reaching import reach
from event_ingest.database import Database
from event_ingest.ingest import CONSUMER
from sandherd.bus.connection import Bus
from sandherd.bus.service import Service
from sandherd.bus.together import end, together
from sandherd.contracts.errors import ContractError
from sandherd.contracts.streams import BY_CONSUMER

_LAG_EVERY: Final = 5.0
_GAPS_EVERY: Final = 60.0
_SETTLED_AFTER: Final = 5.0
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError, ContractError)


class Measures:
    """Looks again and again. What does not answer keeps its last value; /readyz says that it is away."""

    def __init__(self, service: Service, database: Database) -> None:
        self._service = service
        self._database = database

    async def run(self) -> None:
        """Until cancelled."""
        await together(_again(self._measure_lag, _LAG_EVERY), _again(self.measure_gaps, _GAPS_EVERY))

    async def _measure_lag(self) -> None:
        bus, meters = self._service.bus, self._service.meters
        unstored = await count_unstored(bus)
        meters.set("sandherd_ingest_lag_messages", unstored)
        meters.set("sandherd_ingest_oldest_seconds", await oldest_age(bus, datetime.now(UTC)) if unstored else 0)

    async def measure_gaps(self) -> None:
        """Count what is missing at two looks: batches are stored side by side, and the later one may come first."""
        lacking = await self._count_lacking()
        if lacking:
            await asyncio.sleep(_SETTLED_AFTER)
            lacking = min(lacking, await self._count_lacking())
        self._service.meters.set("sandherd_ingest_gaps", lacking)

    async def _count_lacking(self) -> int:
        async with self._database.reading() as connection:
            return await count_lacking(connection)


async def oldest_age(bus: Bus, now: datetime) -> float:
    """How long ago the broker took the oldest event that is not stored; 0 if there is none. Raises nats-py's errors."""
    stream = BY_CONSUMER[CONSUMER].stream
    info = await bus.js.consumer_info(stream, CONSUMER, timeout=2)
    done = info.ack_floor.stream_seq if info.ack_floor else 0
    left = await reach(bus, stream, ">", first=done + 1, most=1, most_bytes=1)
    return max(0.0, (now - left[0].at).total_seconds()) if left else 0.0


async def _again(look: Callable[[], Awaitable[None]], every: float) -> None:
    while True:
        looking = asyncio.ensure_future(look())
        try:
            # Waited for from outside: within it nats-py may swallow a cancellation, and a stop would take seconds.
            await asyncio.wait([looking])
            with suppress(*_UNANSWERED):
                looking.result()
        finally:
            await end([looking])
        await asyncio.sleep(every)
