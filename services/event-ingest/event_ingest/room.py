"""How room is given in streams that refuse when they are full: what may go, and how much of it. Pure."""

from collections.abc import Mapping
from typing import Final

from sandherd.bus.fullness import Fill
from sandherd.bus.purge_limits import GOAL, LEAST_PIECES

__all__ = ["GOAL", "LEAST_PIECES", "MARK", "STEPS", "is_near", "next_cut", "to_keep"]

MARK: Final = 0.75
"""From here on room is given. What is above it is for those who speak while room is being given."""
STEPS: Final = 16
"""The oldest go in so many steps, because messages are of many sizes: no more than needed goes."""


def is_near(fill: Fill) -> bool:
    """Whether it is time to give room."""
    return fill.ratio >= MARK


def next_cut(fill: Fill, handled: int) -> int | None:
    """The sequence below which all may go in the next step; None if it is roomy enough, or nothing more may go.

    `handled` is the last sequence up to which every durable consumer has done its work. Nothing above it ever goes.
    """
    if fill.ratio <= GOAL or not fill.messages:
        return None
    step = max(1, (fill.last - fill.first + 1) // STEPS)
    cut = min(handled + 1, fill.first + step)
    return cut if cut > fill.first else None


def to_keep(pieces: Mapping[tuple[str, str], int], fill: Fill) -> dict[tuple[str, str], int]:
    """How many pieces each of those sandboxes may keep that hold most, so that the stream is at its goal.

    All that hold more than a level give up what is above it, and nobody else gives up anything (max-min fairness:
    Bertsekas and Gallager, Data Networks, 1992, §6.5.2). `pieces` says how many each `(project, sandbox)` holds.
    """
    if not fill.messages:
        return {}
    wanted = int(fill.limit * GOAL / (fill.held / fill.messages))
    level = max(LEAST_PIECES, _level(sorted(pieces.values()), wanted))
    return {key: level for key, count in pieces.items() if count > level}


def _level(counts: list[int], wanted: int) -> int:
    """The height at which what these hold, each cut down to it, sums up to `wanted`."""
    for place, count in enumerate(counts):
        share = wanted // (len(counts) - place)
        if count > share:
            return share
        wanted -= count
    return counts[-1] if counts else 0
