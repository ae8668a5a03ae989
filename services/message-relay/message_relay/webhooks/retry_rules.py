"""When a webhook is sent again, given up, or disabled. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

RETRIES: Final[Sequence[float]] = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds until an event is sent again, by how often it was not accepted: the schedule that Standard Webhooks names.
Together about three days, less than events stay in the stream."""
JITTER: Final = 0.1
"""By which share a delay is longer, at most: many events fail at the same moment."""
_LONGEST: Final = 200


def due_after(
    failures: int, now: datetime, *, retry_after: float | None, jitter: float, retries: Sequence[float]
) -> datetime | None:
    """When an event is sent again after this number of failures; None: it is given up. `jitter` is from 0 to 1."""
    if failures > len(retries):
        return None
    delay = retries[failures - 1] * (1 + JITTER * jitter)
    return now + timedelta(seconds=max(delay, retry_after or 0.0))


def is_over(failing_since: datetime, now: datetime, disable_after: float) -> bool:
    """Whether the receiver has accepted nothing for so long that nothing more is sent."""
    return now - failing_since >= timedelta(seconds=disable_after)


def missing(read_to: int, found: Sequence[int], first: int) -> int:
    """How many messages before those that were found the stream has dropped, at most; it begins at `first` now.

    `read_to` is the sequence up to which it was read. Some of them may have been events of other projects.
    """
    return sum(
        max(0, min(end, first) - start - 1) for start, end in zip([read_to, *found], found or [first], strict=False)
    )


def shown(reason: str) -> str:
    """A failure's reason as it is stored: short, and without characters that control a terminal."""
    return "".join(one if one.isprintable() else "?" for one in reason[:_LONGEST])
