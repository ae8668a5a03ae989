"""Removes what a mirror no longer needs: refs of branches that have ended, and objects without a ref."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from spawner.repositories.mirror import Mirror

MAX_REPACK_SECONDS: Final = 900.0
"""The time limit of repacking. No task can use the repository meanwhile."""
_STAMP_FILE: Final = "sandherd-packed"
"""A file in the mirror. Its modification time is that of the last garbage collection."""
_PACK_CONFIG: Final = {"pack.threads": "1", "pack.windowMemory": "64m", "core.bigFileThreshold": "64m"}
"""Limits repacking to little memory and one core, because other work runs at the same time."""


async def delete_ended(mirror: Mirror, live: Callable[[], Collection[str]]) -> None:
    """Delete the branches that are not among the live ones. Raises `GitError`.

    `live` returns the live branches. It is called after the mirror's branches are read, because a new branch has a
    record before it is in a mirror.
    """
    commits = await mirror.branches()
    ended = commits.keys() - set(live())
    for branch in sorted(ended):
        await mirror.delete_branch(branch, expected=commits[branch])


async def collect_garbage(mirror: Mirror) -> None:
    """Store all objects that a ref needs in as few packs as possible, and remove the others. Raises `GitError`.

    The mirror is locked meanwhile, so there are no new objects that will get a ref.
    """
    limits = replace(mirror.limits, local_seconds=MAX_REPACK_SECONDS)
    config = {**_PACK_CONFIG, "pack.packSizeLimit": str(limits.file_bytes)}
    async with mirror.writing():
        await mirror.git("gc", "--quiet", "--prune=now", limits=limits, config=config)
        (mirror.path / _STAMP_FILE).touch()


def has_changed(mirror: Mirror) -> bool:
    """Whether a branch of the mirror was needed since the last garbage collection. It blocks."""
    stamp: Path = mirror.path / _STAMP_FILE
    return not stamp.exists() or stamp.stat().st_mtime < mirror.used_at()
