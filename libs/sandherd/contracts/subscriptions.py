"""Durable subscriptions: consumers of a project on EVENTS, which one service creates on request.

The broker's permissions can't match a part of a token, and a consumer's name is one token. So a project may have a
fixed number of consumers, `sub-<project>-<place>`, and its subscribers' credentials name each of them. A place is a
number: after a project's name, which may itself contain dashes, it can't be read as a part of another project's name.
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
