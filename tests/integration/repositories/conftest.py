"""Repositories for tests, created by real git: an upstream, and a clone as a sandbox has one."""

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from spawner.repositories.git import GitCredential, RemoteRepository
from spawner.repositories.mirror import Mirror
from tests.doubles.git_server import USER, GitServer, git_server
from tests.shared_broker import herd

__all__ = ["herd"]

TOKEN = "ghs_16C7e42F292c6912E7710c838347Ae178B4a"
PERSON = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


def git(folder: Path, *words: str) -> str:
    """Run git in a folder as a user would; returns its output."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_GLOBAL": os.devnull, **PERSON}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, files: dict[str, str], message: str = "change") -> str:
    """Commit these files in a clone; returns the commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


class Upstream:
    """A repository on a forge: bare, at `path`, with a clone at `clone` for other users' commits."""

    def __init__(self, folder: Path) -> None:
        self.path, self.clone = folder / "served" / "team" / "shop.git", folder / "clone"
        self.clone.mkdir(parents=True)
        git(self.clone, "init", "--quiet", "--initial-branch", "main")
        self.first = commit(self.clone, {"README.md": "shop\n", "shop.py": "total = 1\n"}, "first")
        self.path.parent.mkdir(parents=True)
        git(folder, "clone", "--quiet", "--bare", str(self.clone), str(self.path))
        git(self.path, "config", "http.receivepack", "true")
        git(self.clone, "remote", "add", "origin", str(self.path))

    def commit(self, files: dict[str, str], branch: str = "main") -> str:
        """Push a user's commit with these files; returns the commit."""
        git(self.clone, "checkout", "--quiet", "-B", branch)
        made = commit(self.clone, files)
        git(self.clone, "push", "--quiet", "origin", branch)
        return made

    def head(self, branch: str) -> str:
        """The commit of a branch; empty if there is no such branch."""
        return git(self.path, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A repository with one commit on `main`."""
    return Upstream(tmp_path)


@pytest.fixture
async def server(upstream: Upstream) -> AsyncIterator[GitServer]:
    """A server of the upstream over HTTP, for holders of `TOKEN` only."""
    async with git_server(upstream.path.parents[1], TOKEN) as running:
        yield running


@pytest.fixture
def remote(server: GitServer) -> RemoteRepository:
    """The repository at that server, with its credential."""
    return RemoteRepository(f"{server.url}/team/shop.git", GitCredential(server.url, USER, TOKEN))


@pytest.fixture
async def mirror(tmp_path: Path, remote: RemoteRepository) -> Mirror:
    """A mirror that has fetched it."""
    made = Mirror(tmp_path / "mirrors" / "shop.git")
    await made.fetch(remote)
    return made


class Sandbox:
    """A sandbox's clone of a branch of a mirror."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self, mirror: Mirror, branch: str) -> None:
        """Clone the branch from a bundle."""
        bundle = self.folder.with_suffix(".in")
        await mirror.write_bundle(branch, bundle)
        git(bundle.parent, "clone", "--quiet", "--branch", branch, str(bundle), str(self.folder))

    def bundle(self, branch: str, *excluded: str) -> Path:
        """The branch as a bundle."""
        file = self.folder.with_suffix(".out")
        git(self.folder, "bundle", "create", "--quiet", str(file), f"refs/heads/{branch}", *excluded)
        return file


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """A sandbox that has not started."""
    return Sandbox(tmp_path / "sandbox")
