"""The queue of events that a webhook has to send. Pure.

Events of one task or sandbox are sent one after the other. Events of different tasks or sandboxes are sent at the same
time. An event that has to be sent again delays only later events of its own task or sandbox.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from message_relay.webhooks.retry_rules import RETRIES, due_after
from message_relay.webhooks.webhook_record import WebhookRecord, WebhookRetry

MAX_WAITING: Final = 500
MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of events that wait here, and maximum sum of their sizes in bytes. Further events are read later."""


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """An event that is to be sent."""

    sequence: int
    entity: str
    type: str
    id: str
    body: bytes
    at: datetime
    """When the stream stored it."""


class DeliveryQueue:
    """The events of one webhook that were read and are not handled yet."""

    def __init__(self, record: WebhookRecord, schedule: Sequence[float] = RETRIES) -> None:
        """`schedule` has the delays for `due_after`. Events in `record.waiting` have to be added by `add_waiting`."""
        self._schedule = schedule
        self._retries = {one.sequence: one for one in record.retries}
        self._waiting: dict[str, deque[QueuedEvent]] = {}
        self._open: dict[int, QueuedEvent] = {}
        self._busy: set[str] = set()
        self._bytes = 0
        self.read_to = record.position
        """The sequence up to which the stream was read."""

    @property
    def is_full(self) -> bool:
        """Whether no more events should be read now."""
        return len(self._open) >= MAX_WAITING or self._bytes >= MAX_BYTES

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest unhandled event was stored; None if there is none."""
        return min((one.at for one in self._open.values()), default=None)

    def read(self, sequence: int, item: QueuedEvent | None) -> None:
        """Add the next message of the stream. `item` is None if it is not an event that the webhook selects."""
        self.read_to = max(self.read_to, sequence)
        if item is not None and sequence not in self._open:
            self._add(item)

    def add_waiting(self, item: QueuedEvent) -> None:
        """Add an event that was read before. Events of one task or sandbox have to be added in their order."""
        self._add(item)

    def _add(self, item: QueuedEvent) -> None:
        self._waiting.setdefault(item.entity, deque()).append(item)
        self._open[item.sequence] = item
        self._bytes += len(item.body)

    def next(self, now: datetime) -> QueuedEvent | None:
        """The next event to send now; None if there is none. Its task or sandbox is busy until `finish` or `fail`."""
        heads = [items[0] for entity, items in self._waiting.items() if entity not in self._busy]
        item = min((one for one in heads if self._is_due(one, now)), key=lambda one: one.sequence, default=None)
        if item is None:
            return None
        self._busy.add(item.entity)
        return item

    def _is_due(self, item: QueuedEvent, now: datetime) -> bool:
        retry = self._retries.get(item.sequence)
        return retry is None or retry.due <= now

    def seconds_to_next(self, now: datetime) -> float | None:
        """Seconds until the next retry is due; None if there is none."""
        heads = (items[0].sequence for entity, items in self._waiting.items() if entity not in self._busy)
        due = [self._retries[one].due for one in heads if one in self._retries]
        return max(0.0, (min(due) - now).total_seconds()) if due else None

    def finish(self, item: QueuedEvent) -> None:
        """Remove an event that was accepted or is given up."""
        self._busy.discard(item.entity)
        items = self._waiting[item.entity]
        items.popleft()
        if not items:
            del self._waiting[item.entity]
        del self._open[item.sequence]
        self._bytes -= len(item.body)
        self._retries.pop(item.sequence, None)

    def fail(self, item: QueuedEvent, now: datetime, *, retry_after: float | None, jitter: float) -> bool:
        """Schedule a retry of an event that was not accepted. Returns True if it has to be given up instead."""
        before = self._retries.get(item.sequence)
        failures = before.failures + 1 if before else 1
        due = due_after(failures, now, retry_after=retry_after, jitter=jitter, retries=self._schedule)
        if due is None:
            return True
        self._busy.discard(item.entity)
        self._retries[item.sequence] = WebhookRetry(sequence=item.sequence, failures=failures, due=due)
        return False

    def progress(self) -> dict[str, object]:
        """The fields of the record with the progress of the delivery."""
        return {
            "position": self.read_to,
            "waiting": tuple(sorted(self._open)),
            "retries": tuple(self._retries[one] for one in sorted(self._retries)),
        }
