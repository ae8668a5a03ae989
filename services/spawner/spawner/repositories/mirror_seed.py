"""Begins a new mirror with the objects of another project's mirror of the same repository.

A branch is copied only if the forge shows its commit to this project's credential. So the project may read everything
that is copied, which is the history of such commits. Branches of the other project's tasks are not copied.
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
    changed_at: dict[Path, float] = {}
    for mirror in path.parent.parent.glob(f"*/{path.name}"):
        with suppress(FileNotFoundError):  # the mirror may be removed meanwhile
            if mirror != path and (mirror / "HEAD").exists():
                changed_at[mirror] = mirror.stat().st_mtime
    return sorted(changed_at, key=lambda mirror: changed_at[mirror], reverse=True)


async def seed(mirror: Mirror, other: Mirror, hosts: RepositoryHosts, url: str) -> bool:
    """Copy the remote's branches whose present commit the other mirror has. Returns whether there are any.

    Raises `GitError`.
    """
    if mirror.blobless or other.is_partial():
        return False

    async def list_branches(remote: RemoteRepository) -> Mapping[str, str]:
        return await _remote_branches(other, remote)

    remote_branches = await hosts.use(url, list_branches)
    if not await _equal_branches(other, remote_branches):
        await hosts.use(url, other.fetch)
    equal = await _equal_branches(other, remote_branches)
    if equal:
        refs = "".join(f"+{_REMOTE}{name}:{_REMOTE}{name}\n" for name in equal)
        async with mirror.writing():
            await mirror.git(*FETCH, "--stdin", str(other.path), stdin=refs.encode())
            await _check_copied(mirror, remote_branches)
    return bool(equal)


async def _equal_branches(other: Mirror, remote_branches: Mapping[str, str]) -> list[str]:
    """The branches whose commits in the other mirror are those of the remote."""
    known = await other.remote_branches()
    return sorted(name for name, commit in remote_branches.items() if known.get(name) == commit)


async def _remote_branches(mirror: Mirror, remote: RemoteRepository) -> Mapping[str, str]:
    """The remote's branches, as it shows them to this credential."""
    listed = await mirror.run("ls-remote", "--heads", "--end-of-options", remote.url, remote=remote)
    lines = (line.partition("\t") for line in listed.split("\n"))
    return {name.removeprefix(_HEADS): commit for commit, _, name in lines if name.startswith(_HEADS)}


async def _check_copied(mirror: Mirror, remote_branches: Mapping[str, str]) -> None:
    """Raise `GitError` if a copied branch has moved in the other mirror since the comparison.

    The error removes the new mirror, because it is raised in its first write.
    """
    for name, commit in (await mirror.remote_branches()).items():
        if remote_branches.get(name) != commit:
            raise GitError(GitFault.UNAVAILABLE, f"{name} of another mirror has moved meanwhile")
