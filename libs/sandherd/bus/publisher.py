"""A publisher whose events are numbered without a gap."""

import asyncio
from copy import copy
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.bus.replies import Acknowledgement
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.names import new_uuid
from sandherd.telemetry.traces import current_traceparent


class EventPublisher:
    """Publishes the events of one source, each after the broker has acknowledged the previous one.

    So if its process is killed, the numbers of the source have no gap, and only its last event can be missing.
    """

    def __init__(self, bus: Bus, service: str, instance: str | None = None) -> None:
        self._bus = bus
        self._lease: Lease | None = None
        self._numbers = _Numbers(service, instance or str(new_uuid()))

    @property
    def source(self) -> str:
        """The source of the events that are published now."""
        return self._numbers.source

    def while_held(self, lease: Lease) -> "EventPublisher":
        """A publisher with the same source that publishes only while this lease is held.

        Its `publish` raises `LeaseLostError` if the lease is not held, also after attempts that were not acknowledged.
        """
        publisher = copy(self)
        publisher._lease = lease  # noqa: SLF001  # of its own class
        return publisher

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

        `id` is the event's id, if it was chosen before; no other event may have been published with it.
        """
        about = {"id": id, "time": time, "taskid": taskid, "sandboxid": sandboxid, "traceparent": traceparent}
        return (await self._publish(data, project, entity, None, **about))[0]

    async def publish_first(
        self, data: EventData, name: UUID, *, project: str, entity: str, **about: Any
    ) -> Envelope[EventData] | None:
        """Publish an event, unless one was published under this name within the stream's duplicate window.

        Returns the event, or None if the stream already has an event of this name. Then the caller has to read it: it
        may be another one, or this one from an attempt that was not acknowledged. No other principal may know the name
        (see `DerivedIds`). `about` are further arguments of `publish`. Raises as `publish` does.
        """
        event, ack = await self._publish(data, project, entity, str(name), **about)
        return None if ack.duplicate else event

    async def _publish(
        self, data: EventData, project: str, entity: str, name: str | None, **about: Any
    ) -> tuple[Envelope[EventData], Acknowledgement]:
        numbers, lease = self._numbers, self._lease
        time, traceparent = about.pop("time", None), about.pop("traceparent", None)
        async with numbers.lock:
            event = wrap(
                data,
                data.type,
                source=numbers.source,
                sequence=numbers.sequence + 1,
                project=project,
                subject=entity,
                time=time or datetime.now(UTC),
                traceparent=traceparent or current_traceparent(),
                **about,
            )
            try:
                ack = await self._bus.publish_event(event, msg_id=name, check=lease.check if lease else None)
            except LeaseLostError:  # an earlier attempt may be stored, so its number must not be used again
                numbers.begin(str(new_uuid()))
                raise
            numbers.sequence += 1
            if name is not None and ack.duplicate:  # it is unknown whether this number is stored: begin a new source
                numbers.begin(str(new_uuid()))
            return event, ack


class _Numbers:
    """The source of a publisher, and the number of its last event."""

    def __init__(self, service: str, instance: str) -> None:
        self._service = service
        self.lock = asyncio.Lock()
        self.begin(instance)

    def begin(self, instance: str) -> None:
        """Begin a new source, whose first event has the number 1."""
        self.source = f"/sandherd/{self._service}/{instance}"
        self.sequence = 0
