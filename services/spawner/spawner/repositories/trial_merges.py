"""Trial merges of a branch with its base and with other live branches, before there is a pull request.

At most `MAX_OVERLAPS` merges are tried within `MAX_SECONDS`: with the base first, then with the other branches, the
last changed first.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from sandherd.contracts.events.branch import MAX_OVERLAPS, BranchOverlap
from sandherd.contracts.states import BranchState
from sandherd.telemetry import logs
from spawner.repositories.branch_diff import shown_path
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.git import GitError
from spawner.repositories.mirror import Mirror

MAX_SECONDS: Final = 60.0
"""The time limit of all trial merges of one branch."""
MAX_PATHS_OF_OVERLAP: Final = 20
"""Maximum paths of one overlap: an event has up to 20 overlaps, and has to fit into a message."""
_log: Final = logs.get("branches")


async def find_overlaps(
    mirror: Mirror, record: BranchRecord, branches: Iterable[BranchRecord]
) -> tuple[BranchOverlap, ...]:
    """The branches whose merge with this one has conflicts, among those that were tried in time. Raises `GitError`."""
    base = (await mirror.remote_branches()).get(record.base)
    heads = {**({record.base: base} if base else {}), **other_heads(record, branches)}
    overlaps: list[BranchOverlap] = []
    with suppress(TimeoutError):  # the overlaps that were found in time are returned
        async with asyncio.timeout(MAX_SECONDS):
            for name, commit in list(heads.items())[:MAX_OVERLAPS]:
                if await mirror.has_commit(commit):
                    overlaps += overlap_of(name, await _conflicts(mirror, record, name, commit))
    return tuple(overlaps)


async def _conflicts(mirror: Mirror, record: BranchRecord, name: str, commit: str) -> list[str]:
    """The paths with conflicts; empty if git can't merge the two, so that conflicts with other branches are found."""
    try:
        return await mirror.conflicts(record.commit, commit)
    except GitError as error:
        if not error.permanent:
            raise
        _log.warning("branches not compared", branch=record.key, error=f"with {name}: {error}")
        return []


def other_heads(record: BranchRecord, branches: Iterable[BranchRecord]) -> Mapping[str, str]:
    """The commits of the repository's other live branches with saved commits, by branch, the last changed first."""
    others = [
        other
        for other in branches
        if other.id != record.id
        and (other.project, other.repository) == (record.project, record.repository)
        and other.state is BranchState.LIVE
        and other.commit != other.base_commit
    ]
    others.sort(key=lambda other: other.updated_at, reverse=True)
    return {other.branch: other.commit for other in others}


def overlap_of(branch: str, paths: list[str]) -> Iterator[BranchOverlap]:
    """The overlap with a branch, if there are paths with conflicts."""
    if paths:
        yield BranchOverlap(branch=branch, paths=[shown_path(path) for path in paths[:MAX_PATHS_OF_OVERLAP]])
