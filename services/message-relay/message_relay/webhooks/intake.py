"""Reads the events of one webhook into its queue, and counts those that the stream dropped before they were read."""

from message_relay.webhooks import retry_rules
from message_relay.webhooks.event_reader import EventReader, item_of
from message_relay.webhooks.queue import DeliveryQueue
from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.bus.connection import Bus


class EventIntake:
    """Reads the events of one webhook. Every method raises one of `NO_REPLY` while the broker is unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._events = EventReader(bus)
        self._last = 0
        """The last sequence that the stream had when it was read before."""

    async def begin(self, record: WebhookRecord) -> tuple[WebhookRecord, DeliveryQueue, int]:
        """The webhook, its queue with what was waiting, and how many of those the stream no longer has.

        After the stream was recreated, the webhook begins at its start.
        """
        if (await self._events.bounds()).last < record.position:
            anew = record.model_copy(update={"position": 0, "waiting": (), "retries": ()})
            return anew, DeliveryQueue(anew, retry_rules.RETRIES), len(record.waiting)
        queue, dropped = DeliveryQueue(record, retry_rules.RETRIES), 0
        for sequence in record.waiting:
            stored = await self._events.at(record.project, sequence)
            if stored is None:
                dropped += 1
            elif (item := item_of(record, stored)) is not None:
                queue.add_waiting(item)
        return record, queue, dropped

    async def read(self, record: WebhookRecord, queue: DeliveryQueue) -> tuple[bool, int]:
        """Read the next events. Returns whether there were any, and how many messages were dropped before, at most.

        Without an event the queue is read up to what the stream had before this read: a project without events would
        otherwise seem to have missed what was dropped of others.
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
