"""The double of GitLab: its API against a client's types, python-gitlab as its client, real git, and the races."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import gitlab as python_gitlab
import pytest

from tests.doubles.forges.clock import Clock
from tests.doubles.forges.forge import ViolationError
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.gitlab import GitLab
from tests.doubles.forges.gitlab_shapes import GitLabShapes
from tests.doubles.forges.replies import Reply
from tests.integration.doubles.conftest import Api, push_from_clone

SHOP = "/projects/team%2Fshop"
MRS = f"{SHOP}/merge_requests"
NEW = {"title": "Sum", "source_branch": "feature/sum", "target_branch": "main"}


@pytest.fixture
async def gitlab(clock: Clock) -> AsyncIterator[GitLab]:
    """GitLab."""
    async with GitLab(clock) as running:
        yield running


@pytest.fixture
def project(gitlab: GitLab) -> Repository:
    """A project with a commit on `main` and another on `feature/sum`."""
    made = gitlab.create_project("team/shop")
    made.git.commit("feature/sum", {"sum.py": "total = 1\n"}, "sum", base="main")
    return made


@pytest.fixture
async def gitlab_api(gitlab: GitLab, project: Repository) -> AsyncIterator[Api]:
    """A client with a user's token."""
    async with aiohttp.ClientSession() as session:
        yield Api(session, gitlab.api_url, gitlab.token("ada"))


@pytest.mark.parametrize("squash", [False, True])
async def test_branch_to_merge(gitlab_api: Api, project: Repository, squash: bool) -> None:
    """A merge request is created once, found by its branches, and merged in git; its branch is removed if requested."""
    made = await gitlab_api("POST", MRS, {**NEW, "labels": "agent,x"})
    assert (made.status, made.json["labels"]) == (201, ["agent", "x"]), made.text
    again = await gitlab_api("POST", MRS, NEW)
    assert (again.status, "already exists for this source branch: !1" in again.json["message"][0]) == (409, True)
    found = await gitlab_api("GET", f"{MRS}?state=opened&source_branch=feature/sum&target_branch=main")
    assert [one["iid"] for one in found.json] == [1]
    await gitlab_api("GET", f"{MRS}/1")
    merge = {"sha": made.json["sha"], "squash": squash, "should_remove_source_branch": True}
    merged = await gitlab_api("PUT", f"{MRS}/1/merge", merge)
    assert (merged.status, merged.json["state"], merged.json["merged_by"]["username"]) == (200, "merged", "ada")
    assert "sum.py" in project.git.run("ls-tree", "--name-only", "main")
    assert project.git.contains(str(project.git.head("main")), made.json["sha"]) is not squash
    assert project.git.head("feature/sum") is None
    assert (await gitlab_api("PUT", f"{MRS}/1/merge", merge)).status == 405


async def test_status_is_checking_first(gitlab_api: Api, gitlab: GitLab) -> None:
    """A merge right after the creation gets 422."""
    gitlab.checking = 2
    made = await gitlab_api("POST", MRS, NEW)
    assert (made.json["detailed_merge_status"], made.json["merge_status"]) == ("checking", "checking")
    early = await gitlab_api("PUT", f"{MRS}/1/merge", {"sha": made.json["sha"]})
    assert (early.status, early.json["message"]) == (422, "Branch cannot be merged")
    shown = [(await gitlab_api("GET", f"{MRS}/1")).json["detailed_merge_status"] for _ in range(2)]
    assert shown == ["checking", "mergeable"]


async def test_moved_head_is_409_and_conflict_is_405(gitlab_api: Api, gitlab: GitLab, project: Repository) -> None:
    """The status shows a conflict; the text of the merge's response does not."""
    gitlab.checking = 0
    old = (await gitlab_api("POST", MRS, NEW)).json["sha"]
    new = project.git.commit("feature/sum", {"sum.py": "total = 2\n"})
    moved = await gitlab_api("PUT", f"{MRS}/1/merge", {"sha": old})
    assert (moved.status, moved.json["message"]) == (409, f"SHA does not match HEAD of source branch: {new}")
    project.git.commit("main", {"sum.py": "total = 3\n"})
    assert (await gitlab_api("GET", f"{MRS}/1")).json["detailed_merge_status"] == "conflict"
    conflict = await gitlab_api("PUT", f"{MRS}/1/merge", {"sha": new})
    assert (conflict.status, conflict.json["message"]) == (405, "405 Method Not Allowed")


async def test_reasons_of_405(gitlab_api: Api, gitlab: GitLab, project: Repository) -> None:
    """Draft, approvals and pipeline each have their status, and the same refusal."""
    gitlab.checking = 0
    settings = gitlab.settings["team/shop"]
    settings.approvals, settings.pipeline = 1, True
    sha = (await gitlab_api("POST", MRS, {**NEW, "title": "Draft: Sum"})).json["sha"]
    await gitlab_api("POST", f"{MRS}/1/notes", {"body": "Checked."})
    steps: list[tuple[str, Callable[[], object]]] = [
        ("draft_status", lambda: setattr(project.pulls[1], "draft", False)),
        ("not_approved", lambda: gitlab.approve(project, 1)),
        ("ci_must_pass", lambda: gitlab.report_pipeline(project, sha, None)),
        ("ci_still_running", lambda: gitlab.report_pipeline(project, sha, "failed")),
        ("ci_must_pass", lambda: gitlab.report_pipeline(project, sha, "success")),
    ]
    for status, step in steps:
        assert (await gitlab_api("GET", f"{MRS}/1")).json["detailed_merge_status"] == status
        assert (await gitlab_api("PUT", f"{MRS}/1/merge", {"sha": sha})).status == 405
        step()
    assert (await gitlab_api("PUT", f"{MRS}/1/merge", {})).status == 200
    assert len(gitlab.unguarded_merges) == 1


async def test_merge_waits_for_the_pipeline(gitlab_api: Api, gitlab: GitLab, project: Repository) -> None:
    """The response is 200, and the merge request stays open until the pipeline succeeds."""
    gitlab.checking, gitlab.settings["team/shop"].pipeline = 0, True
    sha = (await gitlab_api("POST", MRS, NEW)).json["sha"]
    gitlab.report_pipeline(project, sha, None)
    queued = await gitlab_api("PUT", f"{MRS}/1/merge", {"sha": sha, "auto_merge": True})
    assert (queued.status, queued.json["state"], queued.json["merge_when_pipeline_succeeds"]) == (200, "opened", True)
    gitlab.report_pipeline(project, sha, "success")
    assert (await gitlab_api("GET", f"{MRS}/1")).json["state"] == "merged"
    assert [one["status"] for one in (await gitlab_api("GET", f"{MRS}/1/pipelines")).json] == ["success", "running"]


async def test_approvals(gitlab_api: Api, gitlab: GitLab, project: Repository) -> None:
    """An approval by the author, a second one, and one of an earlier head are refused."""
    gitlab.settings["team/shop"].approvals = 1
    sha, grace = (await gitlab_api("POST", MRS, NEW)).json["sha"], gitlab.token("grace")
    assert (await gitlab_api("POST", f"{MRS}/1/approve", {})).status == 401
    assert (await gitlab_api("POST", f"{MRS}/1/approve", {"sha": "0" * 40}, token=grace)).status == 409
    assert (await gitlab_api("POST", f"{MRS}/1/approve", {"sha": sha}, token=grace)).json["approvals_left"] == 0
    assert (await gitlab_api("POST", f"{MRS}/1/approve", {}, token=grace)).status == 401
    assert (await gitlab_api("GET", f"{MRS}/1/approvals")).json["approved"] is True


async def test_branches_and_protection(gitlab_api: Api, gitlab: GitLab) -> None:
    """Each refusal of a branch is 400."""
    new = {"branch": "fix/a", "ref": "main"}
    assert (await gitlab_api("POST", f"{SHOP}/repository/branches", new)).status == 201
    again = await gitlab_api("POST", f"{SHOP}/repository/branches", new)
    assert (again.status, again.json["message"]) == (400, "Branch already exists")
    assert (await gitlab_api("GET", f"{SHOP}/repository/branches/fix%2Fa")).json["protected"] is False
    gitlab.protect(gitlab.projects["team/shop"], "fix/*")
    assert [one["name"] for one in (await gitlab_api("GET", f"{SHOP}/protected_branches")).json] == ["fix/*"]
    assert (await gitlab_api("DELETE", f"{SHOP}/repository/branches/fix%2Fa")).status == 403
    assert (await gitlab_api("DELETE", f"{SHOP}/repository/branches/feature%2Fsum")).status == 204


async def test_tokens_and_scopes(gitlab_api: Api, gitlab: GitLab, clock: Clock) -> None:
    """A request gets 401 without a valid token, and 403 with a read-only scope; `PRIVATE-TOKEN` works as well."""
    assert (await gitlab_api("GET", "/user", Authorization="")).status == 401
    own = await gitlab_api("GET", "/user", Authorization="", PRIVATE_TOKEN=gitlab.token("grace"))
    assert own.json["username"] == "grace"
    refused = await gitlab_api("POST", MRS, NEW, token=gitlab.token("ada", ("read_api",)))
    assert (refused.status, refused.json["error"]) == (403, "insufficient_scope")
    expiring = gitlab.token("ada", expires=clock.now() + timedelta(days=1))
    clock.advance(86_400)
    expired = await gitlab_api("GET", "/user", token=expiring)
    assert (expired.status, expired.json["error"]) == (401, "invalid_token")


async def test_pushes(gitlab: GitLab, project: Repository, tmp_path: Path) -> None:
    """A push needs a token with the right scope, and is refused for a protected branch."""
    gitlab.protect(project, "main")
    url = f"{gitlab.url}/team/shop.git"
    reader, writer = (gitlab.token("ada", (scope,)) for scope in ("read_repository", "write_repository"))
    for number, (token, branch, pushed) in enumerate(
        [("", "fix", False), (reader, "fix", False), (writer, "main", False), (writer, "fix", True)]
    ):
        before = project.git.head(branch)
        done = await push_from_clone(tmp_path / str(number), url, project, token, branch)
        assert (done.returncode == 0) is pushed, done.stderr
        assert (project.git.head(branch) != before) is pushed


async def test_python_gitlab_understands_it(gitlab: GitLab, project: Repository) -> None:
    """The usual client creates, lists, changes and merges, and gets the errors that it knows."""
    gitlab.checking = 0

    def use() -> tuple[list[int], str, str, int | None]:
        with python_gitlab.Gitlab(gitlab.url, private_token=gitlab.token("ada")) as client:
            shop = client.projects.get("team/shop")
            made = shop.mergerequests.create(NEW)
            made.notes.create({"body": "Checked."})
            made.labels = ["agent"]
            made.save()
            found = [one.iid for one in shop.mergerequests.list(source_branch="feature/sum", get_all=True)]
            with pytest.raises(python_gitlab.GitlabMRClosedError) as refused:
                made.merge(sha="0" * 40)
            made.merge(sha=made.sha)
            return found, str(made.state), ",".join(made.labels), refused.value.response_code

    assert await asyncio.to_thread(use) == ([1], "merged", "agent", 409)


async def test_faults(gitlab_api: Api, gitlab: GitLab, project: Repository) -> None:
    """Faults are the same as GitHub's: a lost response has taken effect, and a limit is a text."""
    gitlab.lose("create_merge_request")
    with pytest.raises(aiohttp.ClientError):
        await gitlab_api("POST", MRS, NEW)
    assert list(project.pulls) == [1]
    limit = Reply(429, headers={"Retry-After": "60"}, raw=b"Retry later\n", content_type="text/plain")
    gitlab.refuse("project", limit)
    limited = await gitlab_api("GET", SHOP)
    assert (limited.status, limited.headers["retry-after"], limited.text) == (429, "60", "Retry later\n")


async def test_violations(monkeypatch: pytest.MonkeyPatch, gitlab_api: Api, gitlab: GitLab) -> None:
    """A wrong response, an invalid request and an operation that is not served are found."""
    assert (await gitlab_api("POST", MRS, {"title": "Sum"})).status == 400
    original: Any = GitLabShapes.branch
    monkeypatch.setattr(GitLabShapes, "branch", lambda *about: {**original(*about), "protected": "no"})
    assert (await gitlab_api("GET", f"{SHOP}/repository/branches/main")).status == 500
    assert (await gitlab_api("GET", f"{SHOP}/starrers")).status == 404
    with pytest.raises(ViolationError) as raised:
        gitlab.verify()
    for text in ("'no' is not of type 'boolean'", "starrers is not served", "'source_branch' is a required property"):
        assert text in str(raised.value)
    gitlab.violations.clear()
    gitlab.invalid_requests.clear()
