"""Decides when an event is sent again or given up, and when a webhook is disabled. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

RETRIES: Final[Sequence[float]] = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""The delays in seconds after each failure, as Standard Webhooks recommends. Their sum is about three days, which is
less than events stay in the stream."""
JITTER: Final = 0.1
"""The maximum share by which a delay is longer, because many events may fail at the same moment."""
_MAX_REASON_CHARACTERS: Final = 200


def due_after(
    failures: int, now: datetime, *, retry_after: float | None, jitter: float, retries: Sequence[float]
) -> datetime | None:
    """When an event is sent again after this number of failures; None if it is given up. `jitter` is from 0 to 1.

    `retry_after` is the receiver's minimum delay in seconds, or None.
    """
    if failures > len(retries):
        return None
    delay = retries[failures - 1] * (1 + JITTER * jitter)
    return now + timedelta(seconds=max(delay, retry_after or 0.0))


def is_over(failing_since: datetime, now: datetime, disable_after: float) -> bool:
    """Whether the receiver has accepted nothing for so long that the webhook has to be disabled."""
    return now - failing_since >= timedelta(seconds=disable_after)


def missing(read_to: int, found: Sequence[int], first: int) -> int:
    """The maximum number of this project's messages that the stream has dropped between `read_to` and `found`.

    `read_to` is the sequence up to which the stream was read before, `found` are the sequences that were read now, and
    `first` is the stream's first sequence now. Some of the dropped messages may belong to other projects.
    """
    return sum(
        max(0, min(end, first) - start - 1) for start, end in zip([read_to, *found], found or [first], strict=False)
    )


def shown(reason: str) -> str:
    """The reason of a failure as it is stored: shortened, and without characters that control a terminal."""
    return "".join(one if one.isprintable() else "?" for one in reason[:_MAX_REASON_CHARACTERS])
