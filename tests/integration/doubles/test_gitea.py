"""The double of Gitea: its API against the generated models, real git, and what the models do not describe."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.doubles.forges.clock import Clock
from tests.doubles.forges.faults import Way
from tests.doubles.forges.forge import ViolationError
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.gitea import Gitea
from tests.doubles.forges.gitea_shapes import GiteaShapes
from tests.integration.doubles.conftest import Api, push_from_clone

PULLS = "/repos/team/shop/pulls"
NEW = {"title": "Sum", "head": "feature/sum", "base": "main"}


@pytest.fixture
async def gitea(clock: Clock) -> AsyncIterator[Gitea]:
    """Gitea."""
    async with Gitea(clock) as running:
        yield running


@pytest.fixture
def hosted(gitea: Gitea) -> Repository:
    """A repository with a commit on `main` and another on `feature/sum`."""
    made = gitea.create_repository("team/shop")
    made.git.commit("feature/sum", {"sum.py": "total = 1\n"}, "sum", base="main")
    return made


@pytest.fixture
async def gitea_api(gitea: Gitea, hosted: Repository) -> AsyncIterator[Api]:
    """A client with a user's token."""
    async with aiohttp.ClientSession() as session:
        yield Api(session, gitea.api_url, gitea.token("ada"))


@pytest.mark.parametrize("style", ["merge", "squash", "rebase"])
async def test_branch_to_merge(gitea_api: Api, hosted: Repository, style: str) -> None:
    """A pull request is created once, found by its branches, and merged in git."""
    made = await gitea_api("POST", PULLS, NEW)
    assert made.status == 201, made.text
    again = await gitea_api("POST", PULLS, NEW)
    assert again.status == 409
    assert f"issue_id: {made.json['number']}" in again.json["message"]
    found = await gitea_api("GET", f"{PULLS}/main/feature%2Fsum")
    assert found.json["number"] == made.json["number"]
    await gitea_api("GET", f"{PULLS}/1")
    merge = {"Do": style, "head_commit_id": made.json["head"]["sha"]}
    merged = await gitea_api("POST", f"{PULLS}/1/merge", merge)
    assert (merged.status, merged.text) == (200, "")
    assert "sum.py" in hosted.git.run("ls-tree", "--name-only", "main")
    assert (await gitea_api("GET", f"{PULLS}/1/merge")).status == 204
    assert (await gitea_api("POST", f"{PULLS}/1/merge", merge)).status == 405


async def test_mergeable_is_false_while_it_is_checked(gitea_api: Api, gitea: Gitea) -> None:
    """`mergeable` is never null; a merge before it is known gets 405 and the text to try again."""
    gitea.checking = 2
    made = await gitea_api("POST", PULLS, NEW)
    sha = made.json["head"]["sha"]
    assert made.json["mergeable"] is False
    early = await gitea_api("POST", f"{PULLS}/1/merge", {"do": "merge", "head_commit_id": sha})
    assert (early.status, early.json["message"]) == (405, "Please try again later")
    shown = [(await gitea_api("GET", f"{PULLS}/1")).json["mergeable"] for _ in range(2)]
    assert shown == [False, True]


async def test_moved_head_and_conflict_are_409(gitea_api: Api, gitea: Gitea, hosted: Repository) -> None:
    """Both are 409, and only the text distinguishes them."""
    gitea.checking = 0
    old = (await gitea_api("POST", PULLS, NEW)).json["head"]["sha"]
    new = hosted.git.commit("feature/sum", {"sum.py": "total = 2\n"})
    moved = await gitea_api("POST", f"{PULLS}/1/merge", {"do": "merge", "head_commit_id": old})
    assert (moved.status, moved.json["message"]) == (409, "head out of date")
    hosted.git.commit("main", {"sum.py": "total = 3\n"})
    conflict = await gitea_api("POST", f"{PULLS}/1/merge", {"do": "merge", "head_commit_id": new})
    assert (conflict.status, conflict.json["message"]) == (409, "merge conflict")
    assert (await gitea_api("GET", f"{PULLS}/1")).json["mergeable"] is False


async def test_required_checks_approvals_and_drafts_are_405(gitea_api: Api, gitea: Gitea, hosted: Repository) -> None:
    """Merges are refused in this order: checks, approvals; a title with WIP is a draft."""
    gitea.checking = 0
    gitea.protect(hosted, "main", checks=["ci"], approvals=1)
    sha = (await gitea_api("POST", PULLS, NEW)).json["head"]["sha"]
    texts = []
    for step in (
        lambda: None,
        lambda: hosted.report_status(sha, "ci", "success", gitea.clock.now()),
        lambda: gitea.review(hosted, 1),
    ):
        step()
        texts.append((await gitea_api("POST", f"{PULLS}/1/merge", {"do": "squash"})).text)
    assert "Not all required status checks" in texts[0]
    assert "enough approvals" in texts[1]
    assert texts[2] == ""
    assert len(gitea.unguarded_merges) == 1
    hosted.git.commit("wip", {"wip.py": "1\n"}, base="main")
    await gitea_api("POST", PULLS, {"title": "WIP: x", "head": "wip", "base": "main"})
    draft = await gitea_api("POST", f"{PULLS}/2/merge", {"do": "merge"})
    assert (draft.status, draft.json["message"]) == (405, "Work in progress PRs cannot be merged")


async def test_branches_labels_reviewers_and_statuses(gitea_api: Api, gitea: Gitea, hosted: Repository) -> None:
    """The other parts of a pull request can be read and written."""
    await gitea_api("POST", PULLS, NEW)
    made = await gitea_api("POST", "/repos/team/shop/labels", {"name": "agent", "color": "#00aabb"})
    named = await gitea_api("POST", "/repos/team/shop/issues/1/labels", {"labels": [made.json["id"], "missing"]})
    assert [one["name"] for one in named.json] == ["agent"]
    requested = await gitea_api("POST", f"{PULLS}/1/requested_reviewers", {"reviewers": ["grace"]})
    assert [one["state"] for one in requested.json] == ["REQUEST_REVIEW"]
    assert (await gitea_api("POST", f"{PULLS}/1/requested_reviewers", {"reviewers": ["eve"]})).status == 422
    assert (await gitea_api("POST", "/repos/team/shop/issues/1/comments", {"body": "x"})).status == 201
    branch = {"new_branch_name": "fix/a", "old_ref_name": "main"}
    assert (await gitea_api("POST", "/repos/team/shop/branches", branch)).status == 201
    assert (await gitea_api("POST", "/repos/team/shop/branches", branch)).status == 409
    assert (await gitea_api("DELETE", "/repos/team/shop/branches/fix%2Fa")).status == 204
    assert (await gitea_api("DELETE", "/repos/team/shop/branches/fix%2Fa")).status == 404
    gitea.protect(hosted, "main", approvals=1)
    assert (await gitea_api("GET", "/repos/team/shop/branches/main")).json["protected"] is True
    assert [one["rule_name"] for one in (await gitea_api("GET", "/repos/team/shop/branch_protections")).json] == [
        "main"
    ]
    assert (await gitea_api("GET", "/repos/team/shop/commits/main/status")).json["state"] == ""
    gitea.review(hosted, 1, "CHANGES_REQUESTED")
    assert [one["state"] for one in (await gitea_api("GET", f"{PULLS}/1/reviews")).json] == ["REQUEST_CHANGES"]


async def test_tokens_and_scopes(gitea_api: Api, gitea: Gitea, clock: Clock) -> None:
    """A request without a valid token gets 401; 403 names the missing scope."""
    assert (await gitea_api("GET", "/user", Authorization="")).status == 401
    assert (await gitea_api("GET", "/user", token=gitea.token("grace"))).json["login"] == "grace"
    reader = gitea.token("ada", {"repository": "read"})
    assert (await gitea_api("GET", PULLS, token=reader)).status == 200
    refused = await gitea_api("POST", PULLS, NEW, token=reader)
    assert (refused.status, "write:repository" in refused.json["message"]) == (403, True)
    expiring = gitea.token("ada", expires=clock.now() + timedelta(hours=1))
    clock.advance(3600)
    assert (await gitea_api("GET", "/user", token=expiring)).status == 401


async def test_pushes(gitea: Gitea, hosted: Repository, tmp_path: Path) -> None:
    """A push needs a token with the right scope, and is refused for a protected branch."""
    gitea.protect(hosted, "main")
    url = f"{gitea.url}/team/shop.git"
    reader = gitea.token("ada", {"repository": "read"})
    for number, (token, branch, pushed) in enumerate(
        [("", "fix", False), (reader, "fix", False), (gitea.token(), "main", False), (gitea.token(), "fix", True)]
    ):
        before = hosted.git.head(branch)
        done = await push_from_clone(tmp_path / str(number), url, hosted, token, branch)
        assert (done.returncode == 0) is pushed, done.stderr
        assert (hosted.git.head(branch) != before) is pushed


async def test_faults(gitea_api: Api, gitea: Gitea, hosted: Repository) -> None:
    """Faults are the same as GitHub's: a request whose response is lost has taken effect."""
    gitea.lose("repo_create_pull_request")
    with pytest.raises(aiohttp.ClientError):
        await gitea_api("POST", PULLS, NEW)
    assert list(hosted.pulls) == [1]
    gitea.break_off("issue_create_comment", Way.DROPPED)
    with pytest.raises(aiohttp.ClientError):
        await gitea_api("POST", "/repos/team/shop/issues/1/comments", {"body": "x"})
    assert (await gitea_api("GET", "/repos/team/shop/issues/1/comments")).json == []


async def test_violations(monkeypatch: pytest.MonkeyPatch, gitea_api: Api, gitea: Gitea, hosted: Repository) -> None:
    """A wrong response, an invalid request and an operation that is not served are found."""
    refused = await gitea_api("POST", f"{PULLS}", {**NEW, "labels": ["agent"]})
    assert refused.status == 422
    original: Any = GiteaShapes.repository
    monkeypatch.setattr(GiteaShapes, "repository", lambda *about: {**original(*about), "id": "1"})
    assert (await gitea_api("GET", "/repos/team/shop")).status == 500
    assert (await gitea_api("GET", "/repos/team/shop/topics")).status == 404
    with pytest.raises(ViolationError) as raised:
        gitea.verify()
    for text in ("$.id: '1' is not of type 'integer'", "topics is not served", "$.labels[0]: 'agent' is not"):
        assert text in str(raised.value)
    gitea.violations.clear()
    gitea.invalid_requests.clear()
