"""Finds the changed paths of a branch that a user has to approve before it is pushed."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from sandherd.contracts.events.branch import MAX_PATHS
from spawner.repositories.branch_diff import ChangedLines, changed_lines, paths_to_approve, shown_path
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.mirror import Mirror

_MAX_CACHED_COMMITS: Final = 1000
"""Maximum commits whose paths are cached."""
_MAX_BASES: Final = 4
"""Maximum merge bases with which a branch is compared. An agent can create any number of these."""


class PathApproval:
    """Finds the paths by patterns. The paths of saved commits are cached."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._cached_paths: dict[tuple[str, str, str], tuple[str, ...]] = {}

    async def cache(self, record: BranchRecord, commit: str, lines: ChangedLines) -> None:
        """Find the paths to approve among those that the branch's next commit changes, and cache them."""
        while len(self._cached_paths) >= _MAX_CACHED_COMMITS:
            del self._cached_paths[next(iter(self._cached_paths))]
        self._cached_paths[record.key, record.base_commit, commit] = await self._matching(lines)

    async def paths(self, mirror: Mirror, record: BranchRecord, target: str) -> tuple[str, ...]:
        """The changed paths of the branch's commit that have to be approved. Raises `GitError`.

        `target` is the branch into which it is to be merged, as of the last fetch. A path is changed if it differs from
        the merge base, because a forge may run it after the push, or if the merge changes it in the target.
        """
        cached = self._cached_paths.get((record.key, record.base_commit, record.commit))
        base = (await mirror.remote_branches()).get(target, record.base_commit)
        if base != record.base_commit:
            return await self._matching(await _changed_since(mirror, record, base))
        if cached is not None:
            return cached
        return await self._matching(await changed_lines(mirror, record.base_commit, record.commit))

    async def _matching(self, paths: Iterable[str]) -> tuple[str, ...]:
        matching = await asyncio.to_thread(paths_to_approve, sorted(paths), self._patterns)
        return tuple(shown_path(path) for path in matching[:MAX_PATHS])


async def _changed_since(mirror: Mirror, record: BranchRecord, base: str) -> set[str]:
    """The paths that the branch changes, and those that its merge into a newer base changes in the base.

    If there is no merge base, or too many, the branch is compared with its old and its newer base.
    """
    bases = await mirror.merge_bases(record.commit, base)
    has_usable_bases = 0 < len(bases) <= _MAX_BASES
    changed: set[str] = set()
    for ancestor in bases if has_usable_bases else (record.base_commit, base):
        changed |= (await changed_lines(mirror, ancestor, record.commit)).keys()
    return changed | set(await mirror.merge_changes(record.commit, base)) if bases else changed
