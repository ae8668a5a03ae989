"""Removes what a mirror no longer needs: refs of branches that have ended, and objects without a ref."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from spawner.repositories.mirror import Mirror

SECONDS: Final = 900.0
"""How long repacking may take: no task can use the repository meanwhile."""
_STAMP: Final = "sandherd-packed"
_HEADS: Final = "refs/heads/"
_PACKING: Final = {"pack.threads": "1", "pack.windowMemory": "64m", "core.bigFileThreshold": "64m"}
"""Little memory and one core: tasks of others run at the same time."""


async def delete_ended(mirror: Mirror, live: Callable[[], Collection[str]]) -> None:
    """Delete the branches that are not among the live ones. Raises `GitError`.

    `live` returns the live branches. It is called after the mirror's branches are known, because a new branch has a
    record before it is in a mirror.
    """
    found = await mirror.branches()
    ended = found.keys() - set(live())
    for branch in sorted(ended):
        await mirror.delete_branch(branch, expected=found[branch])


async def collect_garbage(mirror: Mirror) -> None:
    """Store all objects that a ref needs in as few packs as possible, and remove the others. Raises `GitError`.

    The mirror is locked meanwhile, so there are no new objects that will get a ref.
    """
    limits = replace(mirror.limits, local_seconds=SECONDS)
    config = {**_PACKING, "pack.packSizeLimit": str(limits.file_bytes)}
    async with mirror.writing():
        await mirror.git("gc", "--quiet", "--prune=now", limits=limits, config=config)
        (mirror.path / _STAMP).touch()


def has_changed(mirror: Mirror) -> bool:
    """Whether a branch of it was needed since its garbage was collected. It blocks."""
    stamp: Path = mirror.path / _STAMP
    return not stamp.exists() or stamp.stat().st_mtime < mirror.used_at()
