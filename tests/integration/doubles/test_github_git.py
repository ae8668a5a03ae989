"""The double of GitHub: git over HTTP with the tokens of the API."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.doubles.forges.clock import Clock
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub
from tests.integration.doubles.conftest import Api, run_git


class Clone:
    """A clone of the repository with a commit to push, by a client that sends a token."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    async def git(self, *words: str, token: str = "") -> subprocess.CompletedProcess[str]:
        """Run git with this token, which its credential helper returns."""
        helper = f"!f() {{ echo username=x-access-token; echo password={token}; }}; f"
        with_token = ["-c", f"credential.helper={helper}"] if token else []
        return await asyncio.to_thread(run_git, self.folder, *with_token, *words)

    async def commit(self, files: dict[str, str]) -> None:
        """Commit files on a new branch `fix`."""
        await self.git("checkout", "-q", "-B", "fix")
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        await self.git("add", "-A")
        await self.git("commit", "-q", "-m", "fix")


@pytest.fixture
async def clone(tmp_path: Path, github: GitHub, shop: Repository) -> Clone:
    """A fresh clone of `main`."""
    made = Clone(tmp_path / "clone", f"{github.url}/team/shop.git")
    made.folder.mkdir()
    cloned = await made.git("clone", "-q", made.url, ".", token=github.person_token("ada"))
    assert cloned.returncode == 0, cloned.stderr
    await made.commit({"fix.py": "1\n"})
    return made


async def test_pushed_branch_is_seen_by_the_api(clone: Clone, api: Api, github: GitHub) -> None:
    """A push with a token creates the branch, and git sees the merge of its pull request."""
    pushed = await clone.git("push", "-q", "origin", "fix", token=github.person_token("ada"))
    assert pushed.returncode == 0, pushed.stderr
    assert (await api("GET", "/repos/team/shop/branches/fix")).status == 200
    made = await api("POST", "/repos/team/shop/pulls", {"title": "Fix", "head": "fix", "base": "main"})
    await api("PUT", "/repos/team/shop/pulls/1/merge", {"sha": made.json["head"]["sha"]})
    await clone.git("fetch", "-q", "origin", token=github.person_token("ada"))
    assert (await clone.git("cat-file", "-e", "origin/main:fix.py")).returncode == 0


@pytest.mark.parametrize("token", ["", "ghp_invalid"])
async def test_push_without_a_valid_token_is_refused(clone: Clone, shop: Repository, token: str) -> None:
    """The push gets 401, and there is no branch."""
    pushed = await clone.git("push", "-q", "origin", "fix", token=token)
    assert pushed.returncode != 0
    assert shop.git.head("fix") is None


async def test_read_permission_fetches_and_does_not_push(clone: Clone, github: GitHub, shop: Repository) -> None:
    """The push gets 403 with GitHub's text."""
    token = github.person_token("ada", "fine_grained", permissions={"contents": "read"})
    assert (await clone.git("fetch", "-q", "origin", token=token)).returncode == 0
    pushed = await clone.git("push", "-q", "origin", "fix", token=token)
    assert "403" in pushed.stderr
    assert shop.git.head("fix") is None


async def test_token_of_another_repository_finds_none(clone: Clone, github: GitHub) -> None:
    """The response is 404, as if the repository did not exist."""
    github.create_repository("team/other")
    token = github.person_token("ada", "fine_grained", repositories=frozenset({"team/other"}))
    fetched = await clone.git("fetch", "-q", "origin", token=token)
    assert "Repository not found" in fetched.stderr


async def test_expired_installation_token_is_refused(clone: Clone, github: GitHub, clock: Clock) -> None:
    """After an hour of the test's clock a push gets 401."""
    token = github.installation_token(github.install_app())
    clock.advance(3599)
    assert (await clone.git("fetch", "-q", "origin", token=token)).returncode == 0
    clock.advance(1)
    pushed = await clone.git("push", "-q", "origin", "fix", token=token)
    assert "Authentication failed" in pushed.stderr


@pytest.mark.parametrize(("ruleset", "code"), [(True, "GH013"), (False, "GH006")])
async def test_protected_branch_refuses_pushes(
    clone: Clone, github: GitHub, shop: Repository, ruleset: bool, code: str
) -> None:
    """The hook refuses the ref for every user, but the push updates other refs."""
    shop.protect("main", ruleset=ruleset)
    before = shop.git.head("main")
    pushed = await clone.git("push", "-q", "origin", "fix:main", "fix", token=github.person_token("ada"))
    assert pushed.returncode != 0
    assert code in pushed.stderr
    assert shop.git.head("main") == before
    assert shop.git.head("fix") is not None
    deleted = await clone.git("push", "-q", "origin", ":main", token=github.person_token("ada"))
    assert deleted.returncode != 0
    assert shop.git.head("main") == before


async def test_workflows_need_their_permission(clone: Clone, github: GitHub, shop: Repository) -> None:
    """A push that changes a workflow is refused without the permission, and accepted with it."""
    await clone.commit({".github/workflows/ci.yml": "on: push\n"})
    refused = await clone.git("push", "-q", "origin", "fix", token=github.installation_token(github.install_app()))
    assert "without `workflows` permission" in refused.stderr
    assert shop.git.head("fix") is None
    app = github.install_app("other", permissions={"contents": "write", "workflows": "write"})
    pushed = await clone.git("push", "-q", "origin", "fix", token=github.installation_token(app))
    assert pushed.returncode == 0, pushed.stderr


async def test_stale_push_is_refused_by_compare_and_set(clone: Clone, github: GitHub, shop: Repository) -> None:
    """A branch that another user moved is not overwritten without force, nor with a lease of the old commit."""
    token = github.person_token("ada")
    await clone.git("push", "-q", "origin", "fix", token=token)
    theirs = shop.git.commit("fix", {"theirs.py": "1\n"})
    await clone.git("commit", "-q", "--allow-empty", "-m", "mine")
    old = (await clone.git("rev-parse", "HEAD~1")).stdout.strip()
    for lease in ([], [f"--force-with-lease=fix:{old}"]):
        assert (await clone.git("push", "-q", *lease, "origin", "fix", token=token)).returncode != 0
    assert shop.git.head("fix") == theirs


async def test_push_whose_response_is_lost_has_taken_effect(clone: Clone, github: GitHub, shop: Repository) -> None:
    """Git fails, and the branch exists."""
    github.lose("transport/receive-pack")
    pushed = await clone.git("push", "-q", "origin", "fix", token=github.person_token("ada"))
    assert pushed.returncode != 0
    assert shop.git.head("fix") == (await clone.git("rev-parse", "fix")).stdout.strip()
