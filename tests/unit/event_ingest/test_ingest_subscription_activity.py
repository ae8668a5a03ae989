"""When a subscription is neglected, and which subscriptions are measured."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.js.api import ConsumerInfo

from event_ingest.subscription_activity import MAX_MEASURED, SubscriptionReading, is_read, largest_lags, reading_of
from sandherd.bus.subscription_consumers import NAME
from sandherd.contracts.subscriptions import consumer_name, project_of_consumer

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def info(*, created: datetime = NOW - 10 * DAY, delivered: datetime | None = None, **more: Any) -> ConsumerInfo:
    """A consumer as the broker describes it."""
    place = {"consumer_seq": 4, "stream_seq": 9}
    if delivered:
        place["last_active"] = delivered.isoformat()  # type: ignore[assignment]  # as in the broker's reply
    described = {
        "name": "sub-my-project-4",
        "stream_name": "EVENTS",
        "config": {"metadata": {NAME: "alerts"}, "inactive_threshold": int(7 * 86_400 * 1e9)},
        "created": created.isoformat(),
        "delivered": place,
        "num_pending": 3,
        "num_ack_pending": 2,
        "num_waiting": 0,
    }
    found: ConsumerInfo = ConsumerInfo.from_response(described | more)
    return found


def reading(**more: Any) -> SubscriptionReading:
    found = reading_of(info(**more), more.pop("seen_at", None))
    assert found is not None
    return found


def test_lag_counts_what_waits_and_what_is_not_acknowledged() -> None:
    """Waiting and unacknowledged events both have not been handled by the readers."""
    found = reading(delivered=NOW - DAY)
    assert (found.project, found.name, found.lag, found.last_read_at) == ("my-project", "alerts", 5, NOW - DAY)


@pytest.mark.parametrize(
    ("name", "project"),
    [("sub-p-1", "p"), ("sub-p-2-16", "p-2"), ("sub-p-17", None), ("sub-p-x", None), ("event-ingest", None)],
)
def test_project_is_in_the_consumers_name(name: str, project: str | None) -> None:
    """The last token is the place, whatever the project is named; a consumer of a service has no project."""
    assert project_of_consumer(name) == project
    assert project is None or consumer_name(project, int(name.rpartition("-")[2])) == name


def test_neglected_subscription_needs_a_warning_before_it_expires() -> None:
    """The warning is due a day before the end, not earlier, and not if a reader was seen lately."""
    unread = reading(delivered=NOW - 6 * DAY)
    assert unread.expires_at == NOW + DAY
    assert unread.needs_warning(DAY, NOW)
    assert not unread.needs_warning(DAY, NOW - timedelta(seconds=1))
    seen = reading_of(info(delivered=NOW - 6 * DAY), NOW - DAY)
    assert seen is not None
    assert not seen.needs_warning(DAY, NOW)


def test_warning_comes_at_half_time_if_the_idle_time_is_short() -> None:
    """A subscription that was just created needs no warning."""
    unread = reading(delivered=NOW)
    assert not unread.needs_warning(100 * DAY, NOW + 3 * DAY)
    assert unread.needs_warning(100 * DAY, NOW + 3.5 * DAY)


def test_waiting_reader_is_seen() -> None:
    """A waiting pull request is a reader, even if it gets no events."""
    assert is_read(info(num_waiting=1))
    assert not is_read(info())


def test_only_the_worst_subscriptions_are_measured() -> None:
    """The number of series is limited, however many subscriptions there are."""
    many = [reading(name=f"sub-p{number}-1", num_pending=number) for number in range(MAX_MEASURED + 50)]
    measured = largest_lags(many)
    assert len(measured) == MAX_MEASURED
    assert measured[0].waiting == MAX_MEASURED + 49
