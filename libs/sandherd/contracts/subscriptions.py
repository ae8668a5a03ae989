"""Durable subscriptions: a project's own consumers on EVENTS, made on request, by one service alone.

No permission of the broker stands for a part of a token, and a consumer's name is one token. So a project has a fixed
number of consumers that may exist, `sub-<project>-<place>`, and its subscribers' credentials name each of them. A place
is a number: behind a project's name, which may itself hold dashes, it can't be read as a part of another's.
"""

from typing import Final

from sandherd.contracts.names import safe_name
from sandherd.contracts.principals import Principal

STREAM: Final = "EVENTS"
DOMAIN: Final = "herd"
"""The JetStream domain that subscribers name to their client: in their own account there are no streams, and JetStream
would tell them so itself."""
GIVER: Final = Principal.SPAWNER
"""Who creates them, when event-ingest asks. No other service may send the broker a consumer's configuration: it
could name a subject to deliver to, and so publish there with the broker's rights."""
SUBSCRIPTIONS_OF: Final = Principal.EVENT_INGEST
"""Who answers for them, and looks them up."""
PLACES: Final = range(1, 17)
"""How many a project may have at the very most; the setting `subscriptions_per_project` allows as many or fewer."""


def consumer_name(project: str, place: int) -> str:
    """The consumer in a place of a project. Raises `UnsafeNameError`."""
    return f"sub-{safe_name(project, 'project')}-{place}"


def consumer_names(project: str) -> list[str]:
    """All that a project may have. Raises `UnsafeNameError`."""
    return [consumer_name(project, place) for place in PLACES]
