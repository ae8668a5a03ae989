"""Retries of messages that the broker has not acknowledged: timeouts, backoff, and which failures are logged."""

from typing import Final

from sandherd.backoff import Backoff
from sandherd.bus.errors import LeaderlessError, StreamFullError, WrongLastSequenceError

BROKER_BACKOFF: Final = Backoff(base=0.05, cap=5.0)
"""The backoff of connections, requests and messages to a broker that does not respond."""
LEADERLESS_BACKOFF: Final = Backoff(base=0.05, cap=0.25)
"""The backoff while a stream has no leader. It is short, because a new leader is elected within seconds."""
_LEADERLESS_FAILURES_PER_LOG: Final = 20
_ACK_TIMEOUT_SECONDS: Final = 5.0
_CLUSTER_ACK_TIMEOUT_SECONDS: Final = 1.5
"""The election of a new leader takes at least 4 s. A message that a lost leader did not acknowledge is published again
before the election ends, so that the new leader accepts no later message before it."""


def acknowledgement_timeout(*, clustered: bool) -> float:
    """Seconds to wait for an acknowledgement before the message is published again."""
    return _CLUSTER_ACK_TIMEOUT_SECONDS if clustered else _ACK_TIMEOUT_SECONDS


def is_retried(error: Exception, *, while_full: bool) -> bool:
    """Whether a publish that failed with this error is retried. `while_full` permits retries while the stream is full.

    A publish that expects another last sequence is not retried, because no retry would be stored.
    """
    return not isinstance(error, WrongLastSequenceError) and (while_full or not isinstance(error, StreamFullError))


def failures_per_log_line(error: Exception) -> int:
    """The number of failures of this kind for each one that is logged. 1 means that every failure is logged."""
    return _LEADERLESS_FAILURES_PER_LOG if isinstance(error, LeaderlessError) else 1


def publish_delay(error: Exception, attempt: int) -> float:
    """Seconds to wait before a message is published again after this error. `attempt` is 0 for the first retry."""
    policy = LEADERLESS_BACKOFF if isinstance(error, LeaderlessError) else BROKER_BACKOFF
    return policy.delay(attempt)
