"""What may be purged at most, whoever asks. Pure."""

from typing import Final

from sandherd.bus.fullness import Fill

GOAL: Final = 0.5
"""Streams are purged until they are no fuller than this: the newest half stays for whoever reads it again."""
LEAST_PIECES: Final = 512
"""A sandbox that keeps no more pieces of artifacts than this, 128 MiB of full ones, gives up none."""


def events_refusal(fill: Fill, handled: int, below: int) -> str | None:
    """Why events below a sequence may not be removed; None if they may.

    `handled` is the last sequence up to which every durable consumer has acknowledged.
    """
    if below > handled + 1:
        return f"sequence {below} is not below what every consumer has acknowledged, which is {handled}"
    return _not_full(fill)


def artifacts_refusal(fill: Fill, keep: int) -> str | None:
    """Why the oldest pieces of a sandbox may not be removed; None if they may."""
    if keep < LEAST_PIECES:
        return f"{LEAST_PIECES} pieces are the least that can be retained, not {keep}"
    return _not_full(fill)


def _not_full(fill: Fill) -> str | None:
    return None if fill.ratio > GOAL else f"{fill.stream} is {fill.ratio:.0%} full; nothing is removed at {GOAL:.0%}"
