"""The double of GitHub: GraphQL, for the merge queue, auto-merge, drafts and signed commits."""

import base64
from typing import Any

import pytest

from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub
from tests.integration.doubles.conftest import Answer, Api

PULL = "/repos/team/shop/pulls/1"


async def mutate(api: Api, name: str, selection: str, token: str = "", **sent: Any) -> Answer:
    """Send a mutation with its input."""
    kind = name[0].upper() + name[1:] + "Input!"
    query = f"mutation($input: {kind}) {{ {name}(input: $input) {{ {selection} }} }}"
    return await api("POST", "/graphql", {"query": query, "variables": {"input": sent}}, token=token)


async def test_merge_queue(api: Api, opened: dict[str, Any], github: GitHub, shop: Repository) -> None:
    """A pull request is enqueued, and later merged or removed, when the test decides."""
    entry = "mergeQueueEntry { state position }"
    refused = await mutate(api, "enqueuePullRequest", entry, pullRequestId=opened["node_id"])
    assert (refused.status, refused.json["errors"][0]["type"]) == (200, "UNPROCESSABLE")
    shop.protect("main", merge_queue=True)
    head = opened["head"]["sha"]
    stale = await mutate(api, "enqueuePullRequest", entry, pullRequestId=opened["node_id"], expectedHeadOid="0" * 40)
    assert "errors" in stale.json
    for merged in (False, True):
        queued = await mutate(api, "enqueuePullRequest", entry, pullRequestId=opened["node_id"], expectedHeadOid=head)
        assert queued.json["data"]["enqueuePullRequest"]["mergeQueueEntry"]["state"] == "QUEUED"
        assert (await api("GET", PULL)).json["merged"] is False
        github.finish_queue(shop, 1, merged=merged)
        assert (await api("GET", PULL)).json["merged"] is merged
    events = [f"{one.event}.{one.payload['action']}" for one in github.webhooks.deliveries]
    assert events[1:] == [f"pull_request.{one}" for one in ("enqueued", "dequeued", "enqueued", "dequeued", "closed")]
    assert github.calls.number("graphql/enqueuePullRequest") == 4


async def test_auto_merge(api: Api, opened: dict[str, Any], github: GitHub, shop: Repository) -> None:
    """Auto-merge is refused if it is off (the default) or not needed, and merges when the requirements are met."""
    wanted = {"pullRequestId": opened["node_id"], "mergeMethod": "SQUASH"}

    async def enabled() -> Answer:
        return await mutate(api, "enablePullRequestAutoMerge", "pullRequest { number }", **wanted)

    assert "not allowed" in (await enabled()).json["errors"][0]["message"]
    shop.allow_auto_merge = True
    assert "clean status" in (await enabled()).json["errors"][0]["message"]
    shop.protect("main", checks=["ci"])
    assert "errors" not in (await enabled()).json
    assert (await api("GET", PULL)).json["auto_merge"]["merge_method"] == "squash"
    assert github.run_auto_merge(shop) == []
    shop.report_check(opened["head"]["sha"], "ci", "success", github.clock.now())
    assert github.run_auto_merge(shop) == [1]
    assert (await api("GET", PULL)).json["merged"] is True


async def test_drafts(api: Api, opened: dict[str, Any]) -> None:
    """A draft is changed by GraphQL; REST can't do that."""
    changed = await mutate(api, "convertPullRequestToDraft", "pullRequest { isDraft }", pullRequestId=opened["node_id"])
    assert changed.json["data"]["convertPullRequestToDraft"]["pullRequest"]["isDraft"] is True
    assert (await api("GET", PULL)).json["draft"] is True
    await mutate(api, "markPullRequestReadyForReview", "pullRequest { id }", pullRequestId=opened["node_id"])
    assert (await api("GET", PULL)).json["draft"] is False


async def test_signed_commit(api: Api, opened: dict[str, Any], shop: Repository) -> None:
    """GitHub verifies a commit by GraphQL, but not one by git; it refuses a branch that has moved."""
    shop.protect("main", signatures=True)
    refused = await api("PUT", f"{PULL}/merge", {"sha": opened["head"]["sha"]})
    assert "verified signatures" in refused.json["message"]
    shop.git.move("signed", str(shop.git.head("main")), None)
    sent: dict[str, Any] = {
        "branch": {"repositoryNameWithOwner": "team/shop", "branchName": "signed"},
        "message": {"headline": "Add", "body": "All of it."},
        "fileChanges": {"additions": [{"path": "a/b.txt", "contents": base64.b64encode(b"\xff\0").decode()}]},
        "expectedHeadOid": shop.git.head("main"),
    }
    made = await mutate(api, "createCommitOnBranch", "commit { oid }", **sent)
    oid = made.json["data"]["createCommitOnBranch"]["commit"]["oid"]
    assert oid == shop.git.head("signed")
    assert (await api("GET", f"/repos/team/shop/commits/{oid}")).json["commit"]["verification"]["verified"] is True
    stale = await mutate(api, "createCommitOnBranch", "commit { oid }", **sent)
    assert stale.json["errors"][0]["type"] == "STALE_DATA"
    await api("POST", "/repos/team/shop/pulls", {"title": "Add", "head": "signed", "base": "main"})
    assert (await api("PUT", "/repos/team/shop/pulls/2/merge", {"sha": oid})).status == 200


@pytest.mark.parametrize(("token", "code"), [({"contents": "write"}, "FORBIDDEN"), ({"pull_requests": "write"}, None)])
async def test_permissions(
    api: Api, opened: dict[str, Any], github: GitHub, token: dict[str, str], code: str | None
) -> None:
    """Permissions, and the check of the token, are the same as for REST."""
    fine = github.person_token("ada", "fine_grained", permissions=token)
    reply = await mutate(
        api, "convertPullRequestToDraft", "pullRequest { id }", token=fine, pullRequestId=opened["node_id"]
    )
    assert [one["type"] for one in reply.json.get("errors", [])] == ([code] if code else [])
    assert (await mutate(api, "convertPullRequestToDraft", "pullRequest { id }", token="x")).status == 401


async def test_query(api: Api, opened: dict[str, Any]) -> None:
    """GraphQL shows a pull request; a field that the schema lacks is an invalid request."""
    query = """query($n: Int!) { repository(owner: "team", name: "shop") { pullRequest(number: $n) {
        id state mergeable isInMergeQueue headRefOid autoMergeRequest { enabledAt } } } }"""
    shown = (await api("POST", "/graphql", {"query": query, "variables": {"n": 1}})).json
    found = shown["data"]["repository"]["pullRequest"]
    assert (found["id"], found["state"], found["mergeable"]) == (opened["node_id"], "OPEN", "UNKNOWN")
    missing = (await api("POST", "/graphql", {"query": query, "variables": {"n": 9}})).json
    assert missing["errors"][0]["type"] == "NOT_FOUND"


async def test_invalid_query_fails_the_test(api: Api, github: GitHub, shop: Repository) -> None:
    """The client gets errors, and the test its own error."""
    reply = await api("POST", "/graphql", {"query": "query { repository { nme } }"})
    assert "errors" in reply.json
    assert any("nme" in one for one in github.invalid_requests)
    github.invalid_requests.clear()
