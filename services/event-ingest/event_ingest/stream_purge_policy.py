"""Rules for purging streams that refuse messages when full: what may be purged, and how much. Pure."""

from collections.abc import Mapping
from typing import Final

from sandherd.service.purge_limits import GOAL, MIN_CHUNKS
from sandherd.service.stream_usage import StreamFill

__all__ = [
    "GOAL",
    "MIN_CHUNKS",
    "PURGE_STEPS",
    "PURGE_THRESHOLD",
    "estimate_bytes",
    "is_nearly_full",
    "limit_chunks",
    "next_purge_sequence",
]

PURGE_THRESHOLD: Final = 0.75
"""Fill ratio at which purging begins. The rest is for messages that are published meanwhile."""
PURGE_STEPS: Final = 16
"""The number of steps of a purge: sizes of messages differ, and no more than needed are to be purged."""


def is_nearly_full(fill: StreamFill) -> bool:
    """Whether it is time to purge."""
    return fill.ratio >= PURGE_THRESHOLD


def estimate_bytes(fill: StreamFill, messages: int) -> int:
    """Bytes of this number of purged messages, by the mean size of the messages before the purge.

    The sizes of the stream before and after can't be used, because messages are published during the purge.
    """
    return fill.held * messages // fill.messages if fill.messages else 0


def next_purge_sequence(fill: StreamFill, handled: int) -> int | None:
    """The sequence below which the next step purges; None if the goal is reached, or nothing more may be purged.

    `handled` is the last sequence up to which every durable consumer is done. Nothing above it is ever purged.
    """
    if fill.ratio <= GOAL or not fill.messages:
        return None
    step = max(1, (fill.last - fill.first + 1) // PURGE_STEPS)
    below = min(handled + 1, fill.first + step)
    return below if below > fill.first else None


def limit_chunks(chunks: Mapping[tuple[str, str], int], fill: StreamFill) -> dict[tuple[str, str], int]:
    """How many chunks the sandboxes with the most chunks may keep, so that the stream is at its goal.

    Sandboxes with more chunks than a common level lose those above it, and the others lose nothing (max-min fairness:
    Bertsekas and Gallager, Data Networks, 1992, §6.5.2). `chunks` is the number of chunks of each `(project, sandbox)`.
    """
    if not fill.messages:
        return {}
    target = int(fill.limit * GOAL / (fill.held / fill.messages))
    level = max(MIN_CHUNKS, _level(sorted(chunks.values()), target))
    return {key: level for key, count in chunks.items() if count > level}


def _level(counts: list[int], target: int) -> int:
    """The level for which the sum of these counts, each limited to the level, is `target`."""
    for index, count in enumerate(counts):
        share = target // (len(counts) - index)
        if count > share:
            return share
        target -= count
    return counts[-1] if counts else 0
