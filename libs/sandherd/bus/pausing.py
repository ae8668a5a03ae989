"""How long to wait before something is tried again, and for an acknowledgement."""

import random
from typing import Final

from sandherd.bus.errors import LeaderlessError

FIRST_WAIT: Final = 0.05
LONGEST_WAIT: Final = 5.0
LONGEST_LEADERLESS: Final = 0.25
"""A stream that has lost its leader has another within seconds; whoever waited longer would add to that."""
_SAID_EVERY: Final = 20
_ACKNOWLEDGED_WITHIN: Final = 5.0
_BY_ONE_OF_SEVERAL: Final = 1.5
"""What a lost leader has not acknowledged is said again before there can be another, which takes 4 s at the least: so
that nothing said later is taken before it."""


def full_jitter(attempt: int, first: float = FIRST_WAIT, longest: float = LONGEST_WAIT) -> float:
    """How long to wait before the given attempt (from 0): anything up to an exponential bound, in seconds.

    Source: Exponential Backoff and Jitter, the AWS Architecture Blog, 2015 ("full jitter").
    """
    return random.uniform(0, min(longest, first * 2 ** min(attempt, 20)))


def acknowledged_within(*, clustered: bool) -> float:
    """How long an acknowledgement is waited for before the same is said again, in seconds."""
    return _BY_ONE_OF_SEVERAL if clustered else _ACKNOWLEDGED_WITHIN


def said_every(error: Exception) -> int:
    """Which failures of this kind are worth a line in the log: every one, or one of so many."""
    return _SAID_EVERY if isinstance(error, LeaderlessError) else 1


def wait_after(error: Exception, attempt: int) -> float:
    """How long to wait before publishing again what failed like this."""
    return full_jitter(attempt, longest=LONGEST_LEADERLESS if isinstance(error, LeaderlessError) else LONGEST_WAIT)
