"""Backoff: the delay before a retry.

Source: Exponential Backoff and Jitter, the AWS Architecture Blog, 2015.
"""

import random
from dataclasses import dataclass
from typing import Final

_LARGEST_POWER: Final = 40


@dataclass(frozen=True)
class Backoff:
    """Delays that double with each failure up to a maximum, and are then reduced at random (jitter).

    Jitter keeps callers that failed together from retrying together.
    """

    base: float
    """The delay after the first failure, in seconds, before jitter reduces it."""
    cap: float
    """The maximum delay in seconds."""
    jitter: float = 1.0
    """The share by which a delay may be reduced: with 0 it is never reduced, with 1 to any value ("full jitter")."""

    def delay(self, attempt: int, draw: float | None = None) -> float:
        """The delay in seconds after this many earlier failures (0 after the first one).

        `draw` is between 0, for the shortest delay, and 1, for the longest; it is random if not given.
        """
        longest = min(self.cap, self.base * 2.0 ** min(max(attempt, 0), _LARGEST_POWER))
        if not self.jitter:
            return longest
        drawn = random.random() if draw is None else draw
        return longest * (1 - self.jitter * (1 - drawn))
