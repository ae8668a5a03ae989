"""Retries of what the broker has not acknowledged: timeouts, backoff, and which failures are logged."""

from typing import Final

from sandherd.backoff import Backoff
from sandherd.bus.errors import LeaderlessError

BROKER_BACKOFF: Final = Backoff(base=0.05, cap=5.0)
"""For connections, requests and messages to a broker that does not respond."""
LEADERLESS_BACKOFF: Final = Backoff(base=0.05, cap=0.25)
"""A stream that has lost its leader has a new one within seconds; a longer backoff would only add to that."""
_LOGGED_EVERY: Final = 20
_ACK_TIMEOUT: Final = 5.0
_CLUSTER_ACK_TIMEOUT: Final = 1.5
"""A message that a lost leader has not acknowledged is published again before a new leader can exist, which takes at
least 4 s: so no later message is accepted before it."""


def acknowledged_within(*, clustered: bool) -> float:
    """Seconds to wait for an acknowledgement before the message is published again."""
    return _CLUSTER_ACK_TIMEOUT if clustered else _ACK_TIMEOUT


def logged_every(error: Exception) -> int:
    """Log one of this many failures of this kind; 1 means every one."""
    return _LOGGED_EVERY if isinstance(error, LeaderlessError) else 1


def publish_delay(error: Exception, attempt: int) -> float:
    """Seconds to wait before a message is published again after this error."""
    policy = LEADERLESS_BACKOFF if isinstance(error, LeaderlessError) else BROKER_BACKOFF
    return policy.delay(attempt)
