"""Mirrors and records of branches do not grow forever, and nothing that is needed is removed."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import DeleteBranch
from spawner.forges.factory import Forges
from spawner.forges.git_credentials import GitCredentials
from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.mirror import Mirror
from spawner.repositories.mirror_gc import collect_garbage, delete_ended, has_changed
from spawner.repositories.mirror_limits import MirrorLimits
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.repository_hosts import RepositoryHosts
from tests.doubles.git_server import USER, GitServer
from tests.integration.repositories.conftest import TOKEN, Sandbox, Upstream, commit, git
from tests.integration.repositories.test_branches import (
    Make,
    branch_of,
    home,
    person,
    reaches,
    repository,
    spawner,
)
from tests.integration.spawner.conftest import ProjectUser
from tests.patience import PATIENCE

__all__ = ["home", "person", "repository", "spawner"]

BRANCH = "feature/search"
LARGE = 300_000


async def refused_bundles(mirror: Mirror, sandbox: Sandbox, upstream: Upstream, count: int) -> None:
    """Send bundles of the sandbox that do not continue the branch."""
    second = upstream.commit({"shop.py": "total = 2\n"})
    git(mirror.path, "fetch", "--quiet", str(upstream.path), "main")
    await mirror.reset_branch(BRANCH, second)
    await sandbox.start(mirror, BRANCH)
    git(sandbox.folder, "reset", "--quiet", "--hard", upstream.first)
    for number in range(count):
        (sandbox.folder / f"{number}.bin").write_bytes(os.urandom(LARGE))
        commit(sandbox.folder, {})
        with pytest.raises(GitError):
            await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=second)


async def test_refused_bundles_do_not_stay(mirror: Mirror, upstream: Upstream, sandbox: Sandbox) -> None:
    """Refused bundles and objects of an ended branch are removed, those of a live branch stay; no hook is used."""
    await refused_bundles(mirror, sandbox, upstream, 3)
    await mirror.reset_branch("feature/ended", upstream.first)
    (mirror.path / "hooks").mkdir(exist_ok=True)
    hook = mirror.path / "hooks" / "pre-auto-gc"
    hook.write_text("#!/bin/sh\ntouch ran\nexit 1\n")
    hook.chmod(0o755)
    mirror.mark_used()
    assert mirror.size_bytes() > LARGE
    assert has_changed(mirror)
    await delete_ended(mirror, lambda: [BRANCH])
    await collect_garbage(mirror)
    assert mirror.size_bytes() < LARGE
    assert not has_changed(mirror)
    assert list(await mirror.branches()) == [BRANCH]
    assert not list(mirror.path.rglob("ran"))
    git(mirror.path, "fsck", "--strict")


@pytest.fixture
def mirrors(tmp_path: Path, server: GitServer) -> Mirrors:
    """A configuration with at most one mirror, of one MiB."""
    stored = tmp_path / "git-credentials"
    stored.write_text(f"{server.url.replace('://', f'://{USER}:{TOKEN}@')}\n")
    hosts = RepositoryHosts(frozenset({server.url}), GitCredentials(Forges(), stored))
    limits = MirrorLimits(timedelta(days=1), number=1, total_bytes=2**30)
    return Mirrors(tmp_path / "mirrors", hosts, None, 1, limits)  # type: ignore[arg-type]  # no artifact is read


async def test_mirror_that_is_full_of_refused_bundles_takes_commits_again(
    mirrors: Mirrors, remote: RemoteRepository, upstream: Upstream, sandbox: Sandbox
) -> None:
    """The mirror's garbage is collected before commits are refused for its size."""
    mirror = await mirrors.fetch("p1", Repository(url=remote.url))
    await refused_bundles(mirror, sandbox, upstream, 4)
    assert mirror.size_bytes() > 2**20
    await mirrors.check_size(mirror)
    assert mirror.size_bytes() < 2**20


async def test_branches_that_are_overwritten_do_not_fill_a_mirror(
    mirrors: Mirrors, remote: RemoteRepository, upstream: Upstream
) -> None:
    """Their objects are removed after a fetch over the maximum; what is needed and too large is an error."""
    repository = Repository(url=remote.url)
    for number in range(4):
        git(upstream.clone, "checkout", "--quiet", "-B", f"try-{number}", "main")
        (upstream.clone / "large.bin").write_bytes(os.urandom(LARGE))
        commit(upstream.clone, {})
        git(upstream.clone, "push", "--quiet", "--force", "origin", "HEAD:overwritten")
        assert (await mirrors.fetch("p1", repository)).size_bytes() < 2**20
    git(upstream.clone, "push", "--quiet", "origin", *(f"try-{number}" for number in range(4)))
    mirror = mirrors.of("p1", remote.url.removesuffix(".git"))
    stamp = mirror.path / "sandherd-packed"
    collected = []
    for _ in range(2):
        with pytest.raises(GitError, match="SANDHERD_MAX_REPOSITORY_MB"):
            await mirrors.fetch("p1", repository)
        collected.append(stamp.stat().st_mtime_ns)
    assert collected[0] == collected[1]  # it has no garbage: each task would repack all of it


async def test_project_has_a_maximum_of_mirrors(
    mirrors: Mirrors, remote: RemoteRepository, server: GitServer, upstream: Upstream
) -> None:
    """A repository that can't be fetched counts as none; the error names the setting; unused mirrors give way."""
    missing = Repository(url=f"{server.url}/team/none.git")
    with pytest.raises(GitError) as failed:
        await mirrors.fetch("p1", missing)
    assert (failed.value.fault, mirrors.existing()) == (GitFault.NOT_FOUND, {})
    first = await mirrors.fetch("p1", Repository(url=remote.url))
    git(upstream.path.parent, "clone", "--quiet", "--bare", str(upstream.path), "other.git")
    other = Repository(url=f"{server.url}/team/other.git")
    with pytest.raises(GitError, match="SANDHERD_MAX_MIRRORS") as refused:
        await mirrors.fetch("p1", other)
    assert refused.value.permanent
    assert (await mirrors.fetch("p1", Repository(url=remote.url))).path == first.path

    async def free_space(project: str) -> None:
        assert project == "p1"
        await mirrors.remove(first.path)

    mirrors.on_full(free_space)
    second = await mirrors.fetch("p1", other)
    assert mirrors.existing() == {"p1": [second.path]}
    assert not first.path.with_suffix(".lock").exists()
    assert datetime.now(UTC).timestamp() - second.used_at() < 3600


async def test_what_an_ended_branch_has_left_is_removed(
    spawner: Make, person: ProjectUser, repository: Repository, home: Path
) -> None:
    """The next spawner removes its record and mirror, but not a live branch's, and exports the number of mirrors."""
    folder = home / "repositories" / "p1"
    async with spawner().running():
        ended = await person.submit(["true"], repository=repository)
        ended_branch = (await reaches(person, ended, lambda _: True)).id
        await person.ended(ended)
        await person.bus.ask(DeleteBranch(branch=ended_branch, where="here"), "p1", timeout=PATIENCE)
        await reaches(person, ended, lambda found: found.state == "deleted")
    (lock,) = folder.glob("*.lock")
    os.utime(lock, (0, 0))
    service = spawner(keep_ended=0.001)
    async with service.running():

        async def removed() -> bool:
            return await branch_of(person, ended) is None and not list(folder.iterdir())

        await person.eventually(removed)
        await person.eventually(lambda: service.registry.get_sample_value("sandherd_mirrors") == 0)
        live = await person.submit(["true"], repository=repository)
        await reaches(person, live, lambda _: True)
        await person.receives(live, "task.completed")  # its record may be removed before it is seen to have ended
    (lock,) = folder.glob("*.lock")
    os.utime(lock, (0, 0))
    service = spawner(keep_ended=0.001)
    async with service.running():
        await person.eventually(lambda: service.registry.get_sample_value("sandherd_mirrors") == 1)
        assert (service.registry.get_sample_value("sandherd_mirrors_bytes") or 0) > 1000
        assert await branch_of(person, live) is not None
