"""Rates of messages, by the generic cell rate algorithm (ITU-T I.371, equivalent to a token bucket). Pure.

Times are Unix seconds. For stored messages the time at which the broker stored them is used, so reading a backlog
quickly does not count as a flood.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

_MAX_KEYS: Final = 4096
_ROUNDING_SECONDS: Final = 1e-6
UNIT: Final = 4096
"""Bytes per unit of cost: a message costs one unit, and one more for each full UNIT of its size."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate in messages per second, and the number of messages that may exceed it at once."""

    per_second: float
    burst: float


def rate_of(per_second: float, seconds: float) -> Rate:
    """A rate whose burst is `seconds` times the messages per second."""
    return Rate(per_second, per_second * seconds)


def cost_of(size: int) -> int:
    """The number of messages as which a message of this size counts. `size` is in bytes."""
    return 1 + size // UNIT


class RateLimiter:
    """Computes by how much the messages of each key exceed a rate.

    If there are more than `_MAX_KEYS` keys, those that are below the rate are removed.
    """

    def __init__(self, rate: Rate) -> None:
        self._interval = 1.0 / rate.per_second
        self._tolerance = rate.burst / rate.per_second
        self._expected: dict[Hashable, float] = {}
        """By key: the time from which its next message is within the rate without using the burst."""

    def excess(self, key: Hashable, at: float, cost: float = 1, since: float | None = None) -> float:
        """Count a message that was stored at `at`. Returns the seconds by which it was too early; 0 if within the rate.

        With `since`, `cost` is the cost of all messages from `since` to `at`.
        """
        start = at if since is None else since
        expected = max(self._expected.get(key, start), start) + cost * self._interval
        self._expected[key] = expected
        if len(self._expected) > _MAX_KEYS:
            self._prune(at)
        excess = expected - at - self._tolerance
        return excess if excess > _ROUNDING_SECONDS else 0.0

    def admits(self, key: Hashable, at: float) -> bool:
        """Whether a message at `at` is within rate and burst. If it is not, it is not counted."""
        expected = max(self._expected.get(key, at), at) + self._interval
        if expected - at - self._tolerance > _ROUNDING_SECONDS:
            return False
        self._expected[key] = expected
        if len(self._expected) > _MAX_KEYS:
            self._prune(at)
        return True

    def drop(self, key: Hashable) -> None:
        """Reset a key, as if it had published no messages."""
        self._expected.pop(key, None)

    def _prune(self, at: float) -> None:
        self._expected = {key: expected for key, expected in self._expected.items() if expected > at}
