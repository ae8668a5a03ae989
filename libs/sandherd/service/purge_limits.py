"""Limits of purging, for every requester. Pure."""

from typing import Final

from sandherd.service.stream_usage import StreamFill

GOAL: Final = 0.5
"""Streams are purged down to this fill ratio: the newest half stays for consumers that read it again."""
MIN_PIECES: Final = 512
"""The newest artifact pieces of a sandbox that are never purged; 512 full ones are 128 MiB."""


def events_refusal(fill: StreamFill, handled: int, below: int) -> str | None:
    """Why events below a sequence may not be removed; None if they may.

    `handled` is the last sequence up to which every durable consumer has acknowledged.
    """
    if below > handled + 1:
        return f"events below {below} can't be purged: not every consumer has acknowledged beyond {handled}"
    return _not_full(fill)


def artifacts_refusal(fill: StreamFill, keep: int) -> str | None:
    """Why the oldest pieces of a sandbox may not be removed; None if they may."""
    if keep < MIN_PIECES:
        return f"at least {MIN_PIECES} pieces must be retained, not {keep}"
    return _not_full(fill)


def _not_full(fill: StreamFill) -> str | None:
    return None if fill.ratio > GOAL else f"{fill.stream} is {fill.ratio:.0%} full; purged only above {GOAL:.0%}"
