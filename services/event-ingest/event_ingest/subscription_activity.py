"""When a subscription was last read, and when it is neglected so long that its readers are warned. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from nats.js.api import ConsumerInfo

from sandherd.bus.subscription_consumers import NAME
from sandherd.contracts.events.subscription import SubscriptionNeglected
from sandherd.contracts.subscriptions import project_of_consumer

MAX_MEASURED: Final = 100
"""Maximum number of measured subscriptions, because their names are labels of metrics."""


@dataclass(frozen=True, kw_only=True)
class SubscriptionReading:
    """The state of one subscription: how much waits, and when something was last fetched."""

    project: str
    name: str
    consumer: str
    waiting: int
    unacknowledged: int
    delivered: int
    """The number of deliveries so far; it does not change while nothing is fetched."""
    active_at: datetime
    """The broker's time of the last delivery or acknowledgement, or of the creation of the subscription."""
    last_read_at: datetime
    """`active_at`, or when a reader was last seen waiting for events if that is later."""
    idle: timedelta
    """The time without a fetch after which the broker deletes the subscription."""

    @property
    def lag(self) -> int:
        """The number of events that are not acknowledged."""
        return self.waiting + self.unacknowledged

    @property
    def expires_at(self) -> datetime:
        """The earliest time at which the broker deletes the subscription."""
        return self.last_read_at + self.idle

    def needs_warning(self, warning: timedelta, now: datetime) -> bool:
        """Whether the subscription expires within `warning`, or within half of `idle` if that is less."""
        return now >= self.expires_at - min(warning, self.idle / 2)

    def event(self, now: datetime) -> SubscriptionNeglected:
        """The event that warns that the subscription is about to expire."""
        return SubscriptionNeglected(
            waiting=self.waiting,
            unacknowledged=self.unacknowledged,
            last_read_at=self.last_read_at,
            expires_at=max(self.expires_at, now),
        )


def is_read(info: ConsumerInfo) -> bool:
    """Whether a reader waits for events at present."""
    return bool(info.num_waiting)


def active_at(info: ConsumerInfo) -> datetime:
    """The time of the last delivery or acknowledgement since the start of the broker, or of the creation."""
    moments = [info.created, *(position.last_active for position in (info.delivered, info.ack_floor) if position)]
    return max(moment.astimezone(UTC) for moment in moments if moment is not None)


def reading_of(info: ConsumerInfo, seen_at: datetime | None) -> SubscriptionReading | None:
    """The state of a subscription; None for any other consumer. A reader was last seen waiting at `seen_at`."""
    project, name = project_of_consumer(info.name), (info.config.metadata or {}).get(NAME)
    if project is None or name is None:
        return None
    last_activity = active_at(info)
    return SubscriptionReading(
        project=project,
        name=name,
        consumer=info.name,
        waiting=info.num_pending or 0,
        unacknowledged=info.num_ack_pending or 0,
        delivered=info.delivered.consumer_seq if info.delivered else 0,
        active_at=last_activity,
        last_read_at=max(last_activity, seen_at) if seen_at else last_activity,
        idle=timedelta(seconds=info.config.inactive_threshold or 0),
    )


def largest_lags(readings: Iterable[SubscriptionReading]) -> list[SubscriptionReading]:
    """The subscriptions that are measured: those with the largest lags. Of equal lags, the longest unread is first."""
    ordered = sorted(readings, key=lambda reading: (-reading.lag, reading.last_read_at, reading.project, reading.name))
    return ordered[:MAX_MEASURED]
