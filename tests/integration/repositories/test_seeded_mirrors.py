"""A new mirror begins with objects of another project's: only what the forge shows to the project itself."""

from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.repositories import Repository
from spawner.repositories.git import GitCredential, GitError
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.repository_hosts import RepositoryHosts
from tests.doubles.git_server import USER, GitServer
from tests.integration.repositories.conftest import TOKEN, Upstream, git


class Credentials:
    """The token of a server, which can be replaced."""

    def __init__(self, server: GitServer) -> None:
        self.origin, self.token = server.url, TOKEN

    async def find(self, url: str) -> GitCredential | None:
        return GitCredential(self.origin, USER, self.token)

    async def renew(self, url: str, refused: GitCredential) -> GitCredential | None:  # there is no other
        return None


def downloads(server: GitServer) -> int:
    """How many times objects were requested from the server."""
    bodies = (request._read_bytes or b"" for request in server.requests if request.path.endswith("/git-upload-pack"))
    return sum(b"want " in body for body in bodies)


def work_of_a_task(upstream: Upstream, mirror: Path) -> str:
    """Commit on a task's branch, with a tag, in one project's mirror only; returns the commit."""
    (upstream.clone / "task.py").write_text("never pushed\n")
    git(upstream.clone, "add", "--all")
    git(upstream.clone, "commit", "--quiet", "--message", "of a task")
    made = git(upstream.clone, "rev-parse", "HEAD")
    git(mirror, "fetch", "--quiet", str(upstream.clone), "+HEAD:refs/heads/feature/task")
    git(mirror, "tag", "own", made)
    git(upstream.clone, "reset", "--quiet", "--hard", upstream.first)
    return made


async def test_new_mirror_has_only_what_its_project_may_read(
    upstream: Upstream, server: GitServer, tmp_path: Path
) -> None:
    """A new mirror has no branch, tag or deleted branch of the other project's, and downloads nothing again."""
    credentials = Credentials(server)
    hosts = RepositoryHosts(frozenset({server.url}), credentials)
    no_artifacts: Any = None
    mirrors = Mirrors(tmp_path / "mirrors", hosts, no_artifacts, 100, shared=True)
    repository = Repository(url=f"{server.url}/team/shop.git")
    gone = upstream.commit({"secret.py": "withdrawn = 1\n"}, "withdrawn")
    first = await mirrors.fetch("p1", repository)
    git(upstream.path, "update-ref", "-d", "refs/heads/withdrawn")
    git(upstream.clone, "checkout", "--quiet", "main")
    task = work_of_a_task(upstream, first.path)
    for fresh in (False, True):  # the other mirror is up to date with the forge, or behind it
        newest = upstream.commit({"shop.py": "total = 2\n"}) if fresh else upstream.first
        credentials.token = "another"
        with pytest.raises(GitError):
            await mirrors.fetch(f"denied-{fresh}".lower(), repository)
        assert not mirrors.of(f"denied-{fresh}".lower(), repository.url or "").path.exists()
        credentials.token = TOKEN
        requested = downloads(server)
        mirror = await mirrors.fetch(f"p2-{fresh}".lower(), repository)
        assert dict(await mirror.remote_branches()) == {"main": newest}
        assert await mirror.branches() == {}
        assert git(mirror.path, "for-each-ref", "--format=%(refname)") == "refs/remotes/origin/main"
        assert not await mirror.has_commit(gone)
        assert not await mirror.has_commit(task)
        assert git(mirror.path, "fsck", "--strict", "--unreachable") == ""
        assert downloads(server) - requested == (1 if fresh else 0), "the history was downloaded a second time"
    assert await first.has_commit(task)


async def test_mirrors_are_not_shared_by_default(upstream: Upstream, server: GitServer, tmp_path: Path) -> None:
    """Each mirror is fetched from the repository."""
    no_artifacts: Any = None
    hosts = RepositoryHosts(frozenset({server.url}), Credentials(server))
    mirrors = Mirrors(tmp_path / "mirrors", hosts, no_artifacts, 100)
    for project in ("p1", "p2"):
        requested = downloads(server)
        await mirrors.fetch(project, Repository(url=f"{server.url}/team/shop.git"))
        assert downloads(server) - requested == 1
