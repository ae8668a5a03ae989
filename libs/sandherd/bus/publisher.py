"""A publisher whose events are numbered without a gap."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.names import new_uuid
from sandherd.telemetry.traces import current_traceparent


class EventPublisher:
    """Publishes the events of one source one at a time, each until the broker acknowledges it.

    One at a time, so that the sequence of a source that is killed has no gap: only the event with the last number can
    be missing, and none follows it.
    """

    def __init__(self, bus: Bus, service: str, instance: str | None = None) -> None:
        self._bus = bus
        self._turn = asyncio.Lock()
        self.source = f"/sandherd/{service}/{instance or new_uuid()}"
        self.sequence = 0

    async def publish(
        self,
        data: EventData,
        *,
        project: str,
        entity: str,
        id: UUID | None = None,
        time: datetime | None = None,
        taskid: str | None = None,
        sandboxid: str | None = None,
        traceparent: str | None = None,
    ) -> Envelope[EventData]:
        """Publish an event and return it once it is acknowledged. Raises `ContractError` for unsafe names.

        `id` is for an event that was decided before; it must not have been published.
        """
        async with self._turn:
            event = wrap(
                data,
                data.type,
                source=self.source,
                sequence=self.sequence + 1,
                project=project,
                subject=entity,
                id=id,
                time=time or datetime.now(UTC),
                taskid=taskid,
                sandboxid=sandboxid,
                traceparent=traceparent or current_traceparent(),
            )
            await self._bus.publish_event(event)
            self.sequence += 1
            return event
