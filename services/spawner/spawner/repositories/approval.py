"""Which changed paths of a branch a user has to approve before it is pushed."""

import asyncio
from collections.abc import Sequence
from typing import Final

from sandherd.contracts.events.branch import MAX_PATHS
from spawner.repositories.differences import Lines, changed_lines, paths_to_approve, shown_path
from spawner.repositories.mirror import Mirror
from spawner.repositories.record import BranchRecord

_MOST: Final = 1000
"""Maximum branches whose paths are in memory."""


class PathApproval:
    """Finds them by these patterns. What was found when commits were saved is in memory until they are pushed."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._found: dict[tuple[str, str, str], tuple[str, ...]] = {}

    async def note(self, record: BranchRecord, commit: str, lines: Lines) -> None:
        """Find them among the changed paths of a commit that the branch gets."""
        while len(self._found) >= _MOST:
            del self._found[next(iter(self._found))]
        self._found[record.key, record.base_commit, commit] = await self._matching(lines)

    async def paths(self, mirror: Mirror, record: BranchRecord) -> tuple[str, ...]:
        """The paths of the branch's commit that have to be approved. Raises `GitError`."""
        found = self._found.pop((record.key, record.base_commit, record.commit), None)
        if found is not None:
            return found
        return await self._matching(await changed_lines(mirror, record.base_commit, record.commit))

    async def _matching(self, lines: Lines) -> tuple[str, ...]:
        found = await asyncio.to_thread(paths_to_approve, sorted(lines), self._patterns)
        return tuple(shown_path(path) for path in found[:MAX_PATHS])
