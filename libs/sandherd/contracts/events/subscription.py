"""Events of event-ingest about durable subscriptions."""

from typing import ClassVar

from sandherd.contracts.events.base import Emitter, EventData, Tone
from sandherd.contracts.model import Count, Moment


class SubscriptionNeglected(EventData):
    """Nothing was fetched from the subscription for so long that it will be deleted, together with its position."""

    type: ClassVar[str] = "subscription.neglected"
    emitted_by: ClassVar[Emitter] = "event-ingest"
    counts_as_work: ClassVar[bool] = False
    closes_source: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "attention"
    waiting: Count
    """Number of events that are not delivered yet."""
    unacknowledged: Count
    """Number of events that were delivered and are not acknowledged."""
    last_read_at: Moment
    """When something was last fetched, as far as event-ingest knows; otherwise when the subscription was created."""
    expires_at: Moment
    """The earliest time at which it is deleted, unless something is fetched before."""

    def summarize(self) -> str:
        return f"not read since {self.last_read_at:%Y-%m-%d %H:%M} UTC, {self.waiting} events wait"
