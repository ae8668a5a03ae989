"""Durable subscriptions: consumers of a project on the stream EVENTS, which one service creates on request.

A consumer's name is one token of a subject, and a wildcard in a permission stands for a whole token. So no single
permission covers exactly the consumers of one project. Instead, a project has a fixed number of places, and its
subscribers' credentials name the consumer of each, `sub-<project>-<place>`. Because a place is a number, a name belongs
to one project only, even if names of projects contain dashes: `sub-a-b-1` is a consumer of the project `a-b`.
"""

from typing import Final

from sandherd.contracts.names import safe_name
from sandherd.contracts.principals import Principal

STREAM: Final = "EVENTS"
DOMAIN: Final = "herd"
"""The JetStream domain that subscribers set in their client: their own account has no streams, and without a domain
JetStream would search there."""
CONSUMER_CREATOR: Final = Principal.SPAWNER
"""The service that creates the consumers, when event-ingest requests it. No other service may send the broker a
consumer's configuration: it could name a subject to deliver to, and so publish there with the broker's permissions."""
SUBSCRIPTION_SERVICE: Final = Principal.EVENT_INGEST
"""The service that handles requests about subscriptions, and looks up their consumers."""
PLACES: Final = range(1, 17)
"""The places of a project. The setting `subscriptions_per_project` permits all of them or fewer."""


def consumer_name(project: str, place: int) -> str:
    """The name of the consumer in this place of a project. Raises `UnsafeNameError`."""
    return f"sub-{safe_name(project, 'project')}-{place}"


def consumer_names(project: str) -> list[str]:
    """The names of all consumers that a project may have. Raises `UnsafeNameError`."""
    return [consumer_name(project, place) for place in PLACES]


def project_of_consumer(name: str) -> str | None:
    """The project of a subscription's consumer; None for any other consumer."""
    project, _, place = name.removeprefix("sub-").rpartition("-")
    if not name.startswith("sub-") or not place.isdecimal() or int(place) not in PLACES:
        return None
    return project or None
