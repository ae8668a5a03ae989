"""Begins a new mirror with the objects of another project's mirror of the same repository.

A branch is copied only if the forge shows its commit to this project's own credential. So the project may read all
that is copied: what this commit contains. Branches of the other project's tasks are not copied.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.mirror import FETCH, Mirror
from spawner.repositories.repository_hosts import RepositoryHosts

_HEADS: Final = "refs/heads/"
_REMOTE: Final = "refs/remotes/origin/"


def mirrors_beside(path: Path) -> Sequence[Path]:
    """The mirrors that other projects have of the same repository, the last changed first. It blocks."""
    changed: dict[Path, float] = {}
    for one in path.parent.parent.glob(f"*/{path.name}"):
        with suppress(FileNotFoundError):  # one that is removed meanwhile
            if one != path and (one / "HEAD").exists():
                changed[one] = one.stat().st_mtime
    return sorted(changed, key=lambda one: changed[one], reverse=True)


async def seed(mirror: Mirror, other: Mirror, hosts: RepositoryHosts, url: str) -> bool:
    """Copy the branches whose present commit the other mirror has; return whether there are any. Raises `GitError`."""
    if mirror.blobless or other.is_partial():
        return False

    async def list_branches(remote: RemoteRepository) -> Mapping[str, str]:
        return await _branches(other, remote)

    shown = await hosts.use(url, list_branches)
    if not await _same(other, shown):
        await hosts.use(url, other.fetch)
    same = await _same(other, shown)
    if same:
        refs = "".join(f"+{_REMOTE}{name}:{_REMOTE}{name}\n" for name in same)
        async with mirror.writing():
            await mirror.git(*FETCH, "--stdin", str(other.path), stdin=refs.encode())
            await _require(mirror, shown)
    return bool(same)


async def _same(other: Mirror, shown: Mapping[str, str]) -> list[str]:
    known = await other.remote_branches()
    return sorted(name for name, commit in shown.items() if known.get(name) == commit)


async def _branches(mirror: Mirror, remote: RemoteRepository) -> Mapping[str, str]:
    """The remote's branches, as it shows them to this credential."""
    listed = await mirror.run("ls-remote", "--heads", "--end-of-options", remote.url, remote=remote)
    lines = (line.partition("\t") for line in listed.split("\n"))
    return {name.removeprefix(_HEADS): commit for commit, _, name in lines if name.startswith(_HEADS)}


async def _require(mirror: Mirror, shown: Mapping[str, str]) -> None:
    """Raise `GitError` if a branch of the other mirror has moved since it was compared. That removes the new mirror."""
    for name, commit in (await mirror.remote_branches()).items():
        if shown.get(name) != commit:
            raise GitError(GitFault.UNAVAILABLE, f"{name} of another mirror has moved meanwhile")
