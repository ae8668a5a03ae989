"""Decides which mirrors are no longer needed, and when garbage is collected. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from sandherd.contracts.states import BranchState
from spawner.repositories.branch_record import BranchRecord

GRACE: Final = timedelta(hours=1)
"""A mirror that was used within this time is not removed, because it may be about to get a branch."""


@dataclass(frozen=True)
class MirrorLimits:
    """The limits of the mirrors of one project."""

    age: timedelta
    """The time after which a mirror is removed that no live branch needs."""
    number: int
    total_bytes: int


COLLECTION_INTERVAL_SECONDS: Final = 600.0
"""Seconds between garbage collections of a mirror that stays too large: a collection takes minutes."""
UNLIMITED: Final = MirrorLimits(timedelta.max, 1_000_000, 2**63)


@dataclass(frozen=True)
class MirrorUsage:
    """The size and use of a mirror of a project."""

    path: Path
    size: int
    """In bytes."""
    used_at: datetime
    needed: bool
    """Whether a live branch is in it."""


def mirrors_to_remove(
    mirrors: Iterable[MirrorUsage], limits: MirrorLimits, now: datetime, *, extra: int = 0
) -> Sequence[MirrorUsage]:
    """The mirrors of one project to remove, those unused for the longest time first. A needed mirror is never removed.

    `extra`: the number of new mirrors for which space is needed.
    """
    oldest_first = sorted(mirrors, key=lambda mirror: mirror.used_at)
    total, number = sum(mirror.size for mirror in oldest_first), len(oldest_first)
    removed: list[MirrorUsage] = []
    for mirror in oldest_first:
        idle = now - mirror.used_at
        if mirror.needed or idle < GRACE:
            continue
        full = total > limits.total_bytes or number + extra > limits.number
        full = full or (extra > 0 and total >= limits.total_bytes)
        if full or idle >= limits.age:
            removed.append(mirror)
            total, number = total - mirror.size, number - 1
    return removed


def collection_is_due(last: tuple[str, float] | None, refs: str, now: float) -> bool:
    """Whether to collect the garbage of a mirror that is too large.

    `last`: the mirror's refs and the time, in seconds, when it was still too large after a collection; None if it was
    not. With the same refs, another collection would remove nothing.
    """
    return last is None or (refs != last[0] and now - last[1] >= COLLECTION_INTERVAL_SECONDS)


def may_be_removed(branch: BranchRecord, now: datetime, keep: timedelta) -> bool:
    """Whether the record of a branch that was deleted or merged is old enough to be removed."""
    return branch.state is not BranchState.LIVE and not branch.has_work and branch.updated_at + keep < now
