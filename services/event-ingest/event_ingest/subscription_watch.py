"""Measures the lag of all subscriptions, and publishes a warning before a neglected one expires.

Every replica does both. The id of a warning is derived from the state of the subscription, so that the same warning
from several replicas is one event. Earlier warnings are found in the history, even after a restart.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
import nats.errors
import nats.js.errors
from nats.js.api import ConsumerInfo

from event_ingest.database import Database
from event_ingest.subscription_activity import SubscriptionReading, is_read, largest_lags, reading_of
from sandherd.bus.errors import BusError
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.subscription import SubscriptionNeglected
from sandherd.contracts.subscriptions import STREAM
from sandherd.service.service import Service
from sandherd.telemetry import logs

_CHECK_SECONDS: Final = 30.0
_PAGE_SIZE: Final = 256
"""The number of consumers that the broker lists at once."""
_UNAVAILABLE_ERRORS: Final = (
    nats.errors.Error,
    nats.js.errors.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    BusError,
    ContractError,
    TimeoutError,
    OSError,
)
_LAST_WARNING: Final = """
select id, time from events where project = $1 and entity = $2 and type = $3 order by stream_sequence desc limit 1
"""
_log: Final = logs.get("subscription_watch")


class SubscriptionWatch:
    """Measures all subscriptions of all projects, at least every half minute."""

    def __init__(self, service: Service, database: Database) -> None:
        self._service = service
        self._database = database
        self._warning = timedelta(seconds=service.settings.subscription_warning)
        self._seen_at: dict[str, datetime] = {}
        """When a reader was last seen waiting, by consumer."""

    async def run(self) -> None:
        """Measure until cancelled."""
        interval = min(_CHECK_SECONDS, self._service.settings.subscription_idle / 8)
        while True:
            try:
                await self.measure(datetime.now(UTC))
            except _UNAVAILABLE_ERRORS as error:
                _log.warning("subscriptions not measured, retrying", error=repr(error))
            await asyncio.sleep(interval)

    async def measure(self, now: datetime) -> None:
        """Measure every subscription, and publish a warning for those that expire soon."""
        infos = await self._read_consumers()
        seen = {info.name: now if is_read(info) else self._seen_at.get(info.name) for info in infos}
        self._seen_at = {name: at for name, at in seen.items() if at is not None}
        readings = [one for info in infos if (one := reading_of(info, seen[info.name])) is not None]
        self._set_gauges(readings, now)
        for reading in readings:
            if reading.needs_warning(self._warning, now):
                await self._warn(reading, now)

    async def _read_consumers(self) -> list[ConsumerInfo]:
        infos: list[ConsumerInfo] = []
        while True:
            page = await self._service.bus.js.consumers_info(STREAM, len(infos))
            infos.extend(page)
            if len(page) < _PAGE_SIZE:
                return infos

    def _set_gauges(self, readings: list[SubscriptionReading], now: datetime) -> None:
        measured = [
            ({"project": reading.project, "subscription": reading.name}, reading) for reading in largest_lags(readings)
        ]
        meters = self._service.meters
        meters.replace("sandherd_subscription_lag_messages", [(labels, reading.lag) for labels, reading in measured])
        meters.replace(
            "sandherd_subscription_unread_seconds",
            [(labels, max(0.0, (now - reading.last_read_at).total_seconds())) for labels, reading in measured],
        )

    async def _warn(self, reading: SubscriptionReading, now: datetime) -> None:
        """Publish the warning, unless one was published since the subscription was last read."""
        async with self._database.reading() as connection:
            row = await connection.fetchrow(_LAST_WARNING, reading.project, reading.name, SubscriptionNeglected.type)
        if row is not None and row["time"] > reading.last_read_at:
            return
        await self._publish(reading, row["id"] if row is not None else None, now)

    async def _publish(self, reading: SubscriptionReading, last_warning_id: UUID | None, now: datetime) -> None:
        bus, data = self._service.bus, reading.event(now)
        id_parts = data.type, reading.consumer, reading.name, reading.delivered, last_warning_id
        id = bus.ids.derive(reading.active_at, *id_parts)
        await bus.publish_event(
            wrap(
                data,
                data.type,
                id=id,
                source=f"/sandherd/event-ingest/{reading.name}/{id.hex}",
                sequence=1,
                project=reading.project,
                subject=reading.name,
                time=now,
            )
        )
        _log.warning("subscription expires soon", project=reading.project, subscription=reading.name)
