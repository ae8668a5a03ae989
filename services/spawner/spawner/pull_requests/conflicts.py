"""Finds the paths in which a branch conflicts with its base, by a trial merge in the mirror."""

from typing import Final

from sandherd.contracts.repositories import Repository
from spawner.pull_requests.pull_request_steps import target_of
from spawner.repositories.branch_diff import shown_path
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.mirrors import Mirrors

_MAX_PATHS: Final = 100
"""Maximum paths that are returned."""


async def conflicting_paths(mirrors: Mirrors, record: BranchRecord) -> list[str]:
    """The paths with conflicts between the branch and the current commit of its base. Raises `GitError`."""
    mirror = await mirrors.with_branch(record)
    await mirrors.fetch(record.project, Repository(url=record.url))
    base = (await mirror.remote_branches()).get(target_of(record))
    if base is None:
        return []
    return [shown_path(path) for path in (await mirror.conflicts(record.commit, base))[:_MAX_PATHS]]
