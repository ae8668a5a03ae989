"""Decides whether messages of a stream may be purged. The limits are the same for every requester. Pure."""

from typing import Final

from sandherd.service.stream_usage import StreamFill

GOAL: Final = 0.5
"""Streams are purged down to this fill ratio. The newest half of the messages stays, for slow readers."""
MIN_CHUNKS: Final = 512
"""The number of a sandbox's newest artifact chunks that are never purged. 512 chunks of maximum size have 128 MiB."""


def events_refusal(fill: StreamFill, handled: int, below: int) -> str | None:
    """The reason why events below the sequence `below` may not be purged; None if it is permitted.

    `handled` is the last sequence up to which every durable consumer has acknowledged all events.
    """
    if below > handled + 1:
        return f"events below {below} can't be purged: not every consumer has acknowledged beyond {handled}"
    return _not_full(fill)


def artifacts_refusal(fill: StreamFill, keep: int) -> str | None:
    """The reason why all but a sandbox's newest `keep` chunks may not be purged; None if it is permitted."""
    if keep < MIN_CHUNKS:
        return f"at least {MIN_CHUNKS} chunks must be retained, not {keep}"
    return _not_full(fill)


def _not_full(fill: StreamFill) -> str | None:
    return None if fill.ratio > GOAL else f"{fill.stream} is {fill.ratio:.0%} full; purged only above {GOAL:.0%}"
