"""Reads the events of one webhook into its queue, and counts events that the stream dropped before they were read."""

from message_relay.webhooks import retry_rules
from message_relay.webhooks.event_reader import EventReader, item_of
from message_relay.webhooks.queue import DeliveryQueue
from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.bus.connection import Bus


class EventIntake:
    """Reads the events of one webhook. Every method raises one of `READ_ERRORS` while the broker is unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._events = EventReader(bus)
        self._last = 0
        """The last sequence of the stream at the previous read."""

    async def begin(self, record: WebhookRecord) -> tuple[WebhookRecord, DeliveryQueue, int]:
        """The webhook, its queue with the events that waited, and how many of these the stream no longer has.

        If the stream was recreated, the webhook begins at the start of the new stream, and no event waits.
        """
        if (await self._events.bounds()).last < record.position:
            restarted = record.model_copy(update={"position": 0, "waiting": (), "retries": ()})
            return restarted, DeliveryQueue(restarted, retry_rules.RETRIES), len(record.waiting)
        queue, dropped = DeliveryQueue(record, retry_rules.RETRIES), 0
        for sequence in record.waiting:
            stored = await self._events.at(record.project, sequence)
            if stored is None:
                dropped += 1
            elif (item := item_of(record, stored)) is not None:
                queue.add_waiting(item)
        return record, queue, dropped

    async def read(self, record: WebhookRecord, queue: DeliveryQueue) -> tuple[bool, int]:
        """Read the next events. Returns whether there were any, and at most how many were dropped before them.

        Without events, the position advances to the end that the stream had at the previous read. Otherwise
        dropped messages of other projects would count as dropped events of a project without events.
        """
        before = queue.read_to
        found = await self._events.after(record.project, before)
        sequences, dropped = [one.sequence for one in found], 0
        if not found or sequences[-1] - before != len(found):
            bounds = await self._events.bounds()
            dropped = retry_rules.missing(before, sequences, bounds.first)
            if not found:
                queue.read(max(self._last, bounds.first - 1), None)
                self._last = bounds.last
        for stored in found:
            queue.read(stored.sequence, item_of(record, stored))
        return bool(found), dropped
