"""Partial mirrors (`SANDHERD_MIRROR_FILTER`) fetch only the files that are needed, with the credential."""

from pathlib import Path

import pytest

from sandherd.contracts.repositories import Repository
from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.lfs import LfsObjects
from spawner.repositories.mirror import Mirror
from spawner.repositories.repository_hosts import RepositoryHosts
from tests.doubles.git_server import GitServer
from tests.integration.repositories.conftest import Upstream, git
from tests.integration.repositories.test_branches import Make, home, person, reaches, repository, spawner
from tests.integration.repositories.test_submodules import Credentials
from tests.integration.spawner.conftest import ProjectUser

__all__ = ["home", "person", "repository", "spawner"]
SCRIPT = """
test "$(git rev-list --count HEAD)" = 3 || exit 9
test -z "$(git status --porcelain)" || exit 8
git gc --quiet --prune=now || exit 7
echo "total = 4" > shop.py
"""


@pytest.fixture
def missing(upstream: Upstream) -> str:
    """The object of a file's earlier version, which no checkout needs; the server filters."""
    git(upstream.path, "config", "uploadpack.allowFilter", "true")
    for number in (2, 3):
        upstream.commit({"shop.py": f"total = {number}\n"})
    return git(upstream.clone, "rev-parse", "main~1:shop.py")


def lacks(mirror: Path, blob: str) -> bool:
    """Whether this object is not in the mirror, though its history names it."""
    return f"?{blob}" in git(mirror, "rev-list", "--objects", "--all", "--missing=print").split()


async def test_task_works_with_a_partial_mirror(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, home: Path, missing: str
) -> None:
    """A sandbox has its branch's files and the whole history; the work is compared and pushed."""
    async with spawner(isolation="auto", mirror_filter="blob:none").running():
        task = await person.submit(["/bin/sh", "-c", SCRIPT], repository=repository)
        ended = await person.ended(task)
        assert (ended.state, ended.error) == ("completed", None)
        view = await reaches(person, task, lambda found: found.pushed_commit is not None or found.problem is not None)
    assert (view.problem, view.additions, view.deletions) == (None, 1, 1)
    assert git(upstream.path, "show", f"{view.branch}:shop.py") == "total = 4"
    [mirror] = (home / "repositories" / "p1").glob("*.git")
    assert lacks(mirror, missing)


async def test_file_that_is_missing_needs_the_forge(
    remote: RemoteRepository, upstream: Upstream, server: GitServer, missing: str, tmp_path: Path
) -> None:
    """Without the forge the error names the setting and is transient; fetched files need no request.

    Before a push, only objects that the repository lacks are searched for pointers of Git LFS.
    """
    mirror = Mirror(tmp_path / "mirrors" / "shop.git", blobless=True)
    await mirror.fetch(remote)
    head = (await mirror.remote_branches())["main"]
    await mirror.complete(remote, [head])
    mirror.promisor = remote
    server.failing = 1_000
    before = len(server.requests)
    await mirror.complete(remote, [head])
    assert await mirror.run("show", f"{head}:shop.py") == "total = 3\n"
    assert len(server.requests) == before
    with pytest.raises(GitError, match="SANDHERD_MIRROR_FILTER") as refused:
        await mirror.run("show", missing)
    assert refused.value.fault is GitFault.UNAVAILABLE
    objects = LfsObjects(RepositoryHosts(frozenset({server.url}), Credentials(server)), 1_000_000)
    await objects.upload(mirror, upstream.first, head, remote.url)  # a merged base needs no file of its history
    server.failing = 0
    assert await mirror.run("show", missing) == "total = 2\n"
