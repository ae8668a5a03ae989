"""The double of GitHub: pull requests from the branch to the merge, in real git."""

from typing import Any

import pytest

from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub
from tests.integration.doubles.conftest import Api

PULL = "/repos/team/shop/pulls/1"


async def test_mergeable_is_unknown_until_the_second_get(api: Api, opened: dict[str, Any], github: GitHub) -> None:
    """After a change `mergeable` is null for the scripted number of gets, then git decides."""
    assert opened["mergeable"] is None
    first, second = await api("GET", PULL), await api("GET", PULL)
    assert [first.json["mergeable"], first.json["mergeable_state"]] == [None, "unknown"]
    assert [second.json["mergeable"], second.json["mergeable_state"]] == [True, "clean"]


@pytest.mark.parametrize("method", ["merge", "squash", "rebase"])
async def test_merge_is_done_in_git(api: Api, opened: dict[str, Any], shop: Repository, method: str) -> None:
    """Each method moves the base branch to the commit in the response, with the files of the branch."""
    shop.git.commit("main", {"other.py": "other\n"}, "other")
    merged = await api("PUT", f"{PULL}/merge", {"sha": opened["head"]["sha"], "merge_method": method})
    assert merged.status == 200, merged.text
    assert merged.json["sha"] == shop.git.head("main")
    assert set(shop.git.run("ls-tree", "--name-only", "main").split()) == {"README.md", "sum.py", "other.py"}
    assert len(shop.git.show(merged.json["sha"]).parents) == (2 if method == "merge" else 1)
    after = (await api("GET", PULL)).json
    assert (after["state"], after["merged"], after["merged_by"]["login"]) == ("closed", True, "ada")
    assert (await api("GET", f"{PULL}/merge")).status == 204


async def test_moved_head_is_409(api: Api, opened: dict[str, Any], shop: Repository) -> None:
    """A merge of a commit from before a push is refused, and changes nothing."""
    shop.git.commit("feature/sum", {"sum.py": "total = 2\n"})
    before = shop.git.head("main")
    refused = await api("PUT", f"{PULL}/merge", {"sha": opened["head"]["sha"]})
    assert refused.status == 409
    assert "Head branch was modified" in refused.json["message"]
    assert shop.git.head("main") == before


async def test_conflict_is_405(api: Api, shop: Repository, opened: dict[str, Any]) -> None:
    """A branch that git can't merge is `dirty`, and its merge is refused with that text."""
    shop.git.commit("main", {"sum.py": "total = 3\n"})
    await api("GET", PULL)
    shown = (await api("GET", PULL)).json
    assert (shown["mergeable"], shown["mergeable_state"]) == (False, "dirty")
    refused = await api("PUT", f"{PULL}/merge", {"sha": opened["head"]["sha"]})
    assert (refused.status, refused.json["message"]) == (405, "Pull Request has merge conflicts")


async def test_required_checks_and_reviews(api: Api, shop: Repository, opened: dict[str, Any], github: GitHub) -> None:
    """A merge is refused until required checks have succeeded and reviews exist; no check is no success."""
    shop.protect("main", checks=["ci"], approvals=1, ruleset=False)
    sha = opened["head"]["sha"]

    async def refusal() -> str:
        reply = await api("PUT", f"{PULL}/merge", {"sha": sha})
        assert reply.status == 405
        return str(reply.json["message"])

    assert await refusal() == 'Required status check "ci" is expected.'
    shop.report_check(sha, "ci", None, github.clock.now())
    assert await refusal() == 'Required status check "ci" is pending.'
    shop.report_check(sha, "ci", "failure", github.clock.now())
    assert await refusal() == 'Required status check "ci" is failing.'
    shop.report_check(sha, "ci", "success", github.clock.now())
    assert await refusal() == "At least 1 approving review is required by reviewers with write access."
    github.review(shop, 1, "APPROVED")
    await api("GET", PULL)
    assert (await api("GET", PULL)).json["mergeable_state"] == "clean"
    assert (await api("PUT", f"{PULL}/merge", {"sha": sha})).status == 200


async def test_merge_queue_and_methods_refuse_with_405(api: Api, shop: Repository, opened: dict[str, Any]) -> None:
    """A ruleset with a merge queue refuses a direct merge; so does a method that is not permitted."""
    sha = opened["head"]["sha"]
    shop.methods = frozenset({"squash"})
    refused = await api("PUT", f"{PULL}/merge", {"sha": sha})
    assert (refused.status, refused.json["message"]) == (405, "Merge commits are not allowed on this repository.")
    shop.protect("main", merge_queue=True)
    refused = await api("PUT", f"{PULL}/merge", {"sha": sha, "merge_method": "squash"})
    assert refused.status == 405
    assert "Changes must be made through the merge queue" in refused.json["message"]
    rules = (await api("GET", "/repos/team/shop/rules/branches/main")).json
    assert [one["type"] for one in rules] == ["pull_request", "merge_queue"]


async def test_draft_and_closed_are_405(api: Api, opened: dict[str, Any], shop: Repository) -> None:
    """A draft, and a closed pull request, are not merged."""
    shop.pulls[1].draft = True
    assert (await api("PUT", f"{PULL}/merge", {})).json["message"] == "Pull Request is still a draft"
    assert (await api("PATCH", PULL, {"state": "closed"})).json["state"] == "closed"
    assert (await api("PUT", f"{PULL}/merge", {})).status == 405


async def test_second_pull_request_of_a_branch_is_422(api: Api, opened: dict[str, Any]) -> None:
    """A second one is refused with GitHub's list of errors; a list by head and base finds the first."""
    again = await api("POST", "/repos/team/shop/pulls", {"title": "Sum", "head": "feature/sum", "base": "main"})
    assert again.status == 422
    assert again.json["message"] == "Validation Failed"
    assert again.json["errors"][0]["message"] == "A pull request already exists for team:feature/sum."
    found = await api("GET", "/repos/team/shop/pulls?head=team:feature/sum&base=main")
    assert [one["number"] for one in found.json] == [1]
    assert (await api("GET", "/repos/team/shop/pulls?head=team:feature/su&base=main")).json == []


@pytest.mark.parametrize(
    ("sent", "field", "code"),
    [
        ({"title": "x", "head": "missing", "base": "main"}, "head", "invalid"),
        ({"title": "x", "head": "feature/sum", "base": "missing"}, "base", "invalid"),
        ({"head": "feature/sum", "base": "main"}, "title", "missing_field"),
    ],
)
async def test_invalid_pull_request_is_422(
    api: Api, shop: Repository, sent: dict[str, str], field: str, code: str
) -> None:
    """The list of errors names the field and the code."""
    refused = await api("POST", "/repos/team/shop/pulls", sent)
    assert refused.status == 422
    assert [(one["field"], one["code"]) for one in refused.json["errors"]] == [(field, code)]


async def test_branch_without_commits_is_422(api: Api, shop: Repository) -> None:
    """A branch at the commit of its base can't have a pull request."""
    shop.git.move("empty", str(shop.git.head("main")), None)
    refused = await api("POST", "/repos/team/shop/pulls", {"title": "x", "head": "empty", "base": "main"})
    assert refused.json["errors"][0]["message"] == "No commits between main and empty"


async def test_deleted_branch_closes_its_pull_request(api: Api, opened: dict[str, Any]) -> None:
    """The pull request is closed as on GitHub, and a deleted branch can't be deleted again."""
    assert (await api("DELETE", "/repos/team/shop/git/refs/heads/feature/sum")).status == 204
    assert (await api("GET", PULL)).json["state"] == "closed"
    assert (await api("DELETE", "/repos/team/shop/git/refs/heads/feature/sum")).status == 422


async def test_update_branch_takes_effect_later(api: Api, opened: dict[str, Any], shop: Repository) -> None:
    """The response is 202; the merge of the base into the head is visible after a get."""
    shop.git.commit("main", {"other.py": "other\n"})
    assert (await api("PUT", f"{PULL}/update-branch", {})).status == 202
    assert shop.git.head("feature/sum") == opened["head"]["sha"]
    await api("GET", PULL)
    updated = (await api("GET", PULL)).json["head"]["sha"]
    assert updated == shop.git.head("feature/sum") != opened["head"]["sha"]


async def test_labels_reviewers_comments_and_issues(api: Api, opened: dict[str, Any], github: GitHub) -> None:
    """Labels, comments and issues belong to pull requests, and so do reviewers, who must be collaborators."""
    labelled = await api("POST", "/repos/team/shop/issues/1/labels", {"labels": ["agent", "agent"]})
    assert [one["name"] for one in labelled.json] == ["agent"]
    assert (await api("POST", "/repos/team/shop/issues/1/comments", {"body": "Checked."})).status == 201
    assert [one["body"] for one in (await api("GET", "/repos/team/shop/issues/1/comments")).json] == ["Checked."]
    requested = await api("POST", f"{PULL}/requested_reviewers", {"reviewers": ["grace"]})
    assert [one["login"] for one in requested.json["requested_reviewers"]] == ["grace"]
    assert (await api("POST", f"{PULL}/requested_reviewers", {"reviewers": ["eve"]})).status == 422
    assert (await api("POST", f"{PULL}/requested_reviewers", {"reviewers": ["ada"]})).status == 422
    issue = github.open_issue(github.repositories["team/shop"], "Sums are wrong")
    assert "pull_request" not in (await api("GET", f"/repos/team/shop/issues/{issue.number}")).json
    assert "pull_request" in (await api("GET", "/repos/team/shop/issues/1")).json
    assert (await api("GET", "/repos/team/shop/issues/99")).status == 404


async def test_checks_and_statuses_are_two_lists(
    api: Api, opened: dict[str, Any], shop: Repository, github: GitHub
) -> None:
    """A check run is no commit status, and without statuses the combined status is `pending`."""
    sha = opened["head"]["sha"]
    assert (await api("GET", f"/repos/team/shop/commits/{sha}/status")).json["state"] == "pending"
    shop.report_check(sha, "ci", "failure", github.clock.now())
    shop.report_status(sha, "lint", "success", github.clock.now())
    runs = (await api("GET", f"/repos/team/shop/commits/{sha}/check-runs")).json
    statuses = (await api("GET", f"/repos/team/shop/commits/{sha}/status")).json
    assert [(one["name"], one["conclusion"]) for one in runs["check_runs"]] == [("ci", "failure")]
    assert (statuses["state"], [one["context"] for one in statuses["statuses"]]) == ("success", ["lint"])
    await api("GET", PULL)
    assert (await api("GET", PULL)).json["mergeable_state"] == "unstable"


async def test_all_statuses_and_files(api: Api, opened: dict[str, Any], shop: Repository, github: GitHub) -> None:
    """Each status is listed, newest first; the files are those that the branch changes."""
    sha = opened["head"]["sha"]
    for state in ("pending", "success"):
        shop.report_status(sha, "lint", state, github.clock.now())
    listed = (await api("GET", f"/repos/team/shop/commits/{sha}/statuses")).json
    assert [one["state"] for one in listed] == ["success", "pending"]
    shop.git.commit("feature/sum", {"README.md": None})
    shop.git.commit("main", {"other.py": "1\n"})
    files = (await api("GET", f"{PULL}/files")).json
    assert [(one["filename"], one["status"]) for one in files] == [("README.md", "removed"), ("sum.py", "added")]


async def test_lists_have_pages(api: Api, shop: Repository) -> None:
    """A list is cut after `per_page`, and a link leads to the next page."""
    for number in range(5):
        shop.git.move(f"b{number}", str(shop.git.head("main")), None)
    first = await api("GET", "/repos/team/shop/branches?per_page=3")
    assert len(first.json) == 3
    assert 'page=2>; rel="next"' in first.headers["link"]
    rest = [(await api("GET", f"/repos/team/shop/branches?per_page=3&page={page}")).json for page in (2, 3)]
    assert [len(one) for one in rest] == [3, 1]


async def test_blind_and_unguarded_merges_are_recorded(api: Api, opened: dict[str, Any], github: GitHub) -> None:
    """A client that merges while `mergeable` is null, or without `sha`, is recorded."""
    assert (await api("PUT", f"{PULL}/merge", {})).status == 200
    assert len(github.blind_merges) == len(github.unguarded_merges) == 1


async def test_refs(api: Api, shop: Repository) -> None:
    """Refs are created, moved forward, and refused with GitHub's texts."""
    main, sum_ = shop.git.head("main"), shop.git.head("feature/sum")
    refs = "/repos/team/shop/git/refs"
    assert (await api("POST", refs, {"ref": "refs/heads/fix/a", "sha": main})).status == 201
    again = await api("POST", refs, {"ref": "refs/heads/fix/a", "sha": main})
    assert (again.status, again.json["message"]) == (422, "Reference already exists")
    assert (await api("POST", refs, {"ref": "refs/heads/fix/b", "sha": "0" * 39 + "1"})).status == 422
    assert (await api("POST", refs, {"ref": "refs/heads/fix", "sha": main})).status == 422
    assert (await api("PATCH", f"{refs}/heads/fix/a", {"sha": sum_})).json["object"]["sha"] == sum_
    back = await api("PATCH", f"{refs}/heads/fix/a", {"sha": main})
    assert (back.status, back.json["message"]) == (422, "Update is not a fast forward")
    assert (await api("GET", "/repos/team/shop/git/ref/heads/fix/a")).json["object"]["sha"] == sum_
    assert [one["ref"] for one in (await api("GET", "/repos/team/shop/git/matching-refs/heads/f")).json] == [
        "refs/heads/feature/sum",
        "refs/heads/fix/a",
    ]
    assert (await api("DELETE", f"{refs}/heads/main")).status == 422


async def test_branches_and_repository(api: Api, shop: Repository) -> None:
    """The repository has the permitted merges, and a branch states whether it is protected."""
    shop.protect("main", checks=["ci"])
    shown = (await api("GET", "/repos/team/shop")).json
    assert (shown["default_branch"], shown["allow_squash_merge"], shown["allow_auto_merge"]) == ("main", True, False)
    branch = (await api("GET", "/repos/team/shop/branches/main")).json
    assert (branch["protected"], branch["commit"]["sha"]) == (True, shop.git.head("main"))
    assert (await api("GET", "/repos/team/shop/branches/feature%2Fsum")).json["protected"] is False
    assert (await api("GET", "/repos/team/shop/branches/missing")).status == 404


async def test_merges_of_branches(api: Api, shop: Repository) -> None:
    """A merge is 201 with the commit, then 204, and 409 for a conflict."""
    merge = {"base": "feature/sum", "head": "main"}
    shop.git.commit("main", {"other.py": "1\n"})
    assert (await api("POST", "/repos/team/shop/merges", merge)).status == 201
    assert (await api("POST", "/repos/team/shop/merges", merge)).status == 204
    shop.git.commit("main", {"sum.py": "other\n"})
    assert (await api("POST", "/repos/team/shop/merges", merge)).status == 409
