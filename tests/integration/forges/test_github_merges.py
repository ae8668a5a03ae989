"""Merges at GitHub are of an expected commit, never blind, and done once, whatever response is lost."""

from dataclasses import replace

import pytest

from spawner.forges.forge import Forge, MergeMethod, MergeResult, Obstacle
from spawner.forges.github_replies import graphql_url
from spawner.forges.locations import GITHUB, ForgeHost, ForgeKind
from tests.doubles.forges.faults import Way
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub
from tests.doubles.forges.github_faults import refused_merge
from tests.doubles.forges.replies import Reply
from tests.integration.forges.conftest import DRAFT, head_of, pull_of, settled


@pytest.fixture
async def opened(forge: Forge, shop: Repository) -> str:
    """The head of a pull request whose mergeability is known."""
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    return head_of(shop)


@pytest.mark.parametrize("method", MergeMethod)
async def test_method_is_used(forge: Forge, opened: str, shop: Repository, method: MergeMethod) -> None:
    """A merge commit has two parents, other methods' commits one."""
    outcome = await forge.merge(1, opened, method)
    assert outcome.commit
    parents = shop.git.run("rev-list", "--parents", "-1", outcome.commit).split()[1:]
    assert len(parents) == (2 if method is MergeMethod.MERGE else 1)


async def test_merge_that_was_done_by_another_client_meanwhile_is_found(
    forge: Forge, opened: str, github: GitHub, shop: Repository
) -> None:
    """GitHub refuses the second merge of a pull request with a text that does not say that it is merged."""
    fault = github.break_off("pulls/merge", Way.REPLACED)
    fault.reply = refused_merge("Pull Request is not mergeable")
    assert (await forge.merge(1, opened)).commit == head_of(shop, "main")


@pytest.mark.parametrize(
    ("rules", "obstacle"),
    [({"checks": ["ci"]}, Obstacle.CHECKS), ({"checks": ["ci", "lint"]}, Obstacle.CHECKS),
     ({"approvals": 1}, Obstacle.REVIEWS), ({"checks": ["ci"], "ruleset": False}, Obstacle.CHECKS)],
)  # fmt: skip
async def test_missing_check_or_approval_means_wait(
    forge: Forge, opened: str, shop: Repository, rules: dict[str, object], obstacle: Obstacle
) -> None:
    """The texts of rulesets and of older protections mean waiting."""
    shop.protect("main", **rules)
    outcome = await forge.merge(1, opened)
    assert (outcome.result, outcome.obstacle) == (MergeResult.WAITING, obstacle)
    assert outcome.reason


async def test_branch_behind_its_base_means_wait(forge: Forge, opened: str, shop: Repository) -> None:
    """After an update of the branch the same request succeeds."""
    shop.protect("main", up_to_date=True)
    shop.git.commit("main", {"other.py": "1\n"}, "other")
    await settled(forge)
    outcome = await forge.merge(1, opened)
    assert (outcome.result, outcome.obstacle) == (MergeResult.WAITING, Obstacle.BEHIND)


async def test_conflict_draft_and_method_are_refused(forge: Forge, shop: Repository, github: GitHub) -> None:
    """Waiting would change neither a conflict, nor a draft, nor the method."""
    await forge.find_or_create_pull_request(replace(DRAFT, draft=True))
    await settled(forge)
    head = head_of(shop)
    assert (await forge.merge(1, head)).obstacle is Obstacle.DRAFT
    pull_of(shop).draft = False
    shop.methods = frozenset({"squash"})
    assert (await forge.merge(1, head, MergeMethod.REBASE)).obstacle is Obstacle.METHOD
    shop.git.commit("main", {"sum.py": "total = 3\n"}, "other")
    await settled(forge)
    outcome = await forge.merge(1, head)
    assert (outcome.result, outcome.obstacle) == (MergeResult.REFUSED, Obstacle.CONFLICT)


async def test_merge_queue_gets_the_pull_request(forge: Forge, opened: str, github: GitHub, shop: Repository) -> None:
    """With a merge queue, GraphQL enqueues the expected commit; a repetition succeeds, too."""
    shop.protect("main", merge_queue=True)
    assert (await forge.merge(1, opened)).result is MergeResult.QUEUED
    assert pull_of(shop).queued
    assert (await forge.merge(1, opened, queue=True)).result is MergeResult.QUEUED
    already = {"data": None, "errors": [{"message": "Pull request is already in the queue", "type": "UNPROCESSABLE"}]}
    github.refuse("graphql/enqueuePullRequest", Reply(200, already))
    assert (await forge.merge(1, opened, queue=True)).result is MergeResult.QUEUED


async def test_branch_without_a_merge_queue_is_refused(forge: Forge, opened: str) -> None:
    """Waiting would not create a merge queue."""
    outcome = await forge.merge(1, opened, queue=True)
    assert (outcome.result, outcome.obstacle) == (MergeResult.REFUSED, Obstacle.QUEUE)


@pytest.mark.parametrize(
    ("text", "result", "obstacle"),
    [("Head sha didn't match expected value", MergeResult.REFUSED, Obstacle.HEAD_MOVED),
     ("Pull request is not in a mergeable state", MergeResult.WAITING, Obstacle.RULES),
     ("Required status check ci is expected.", MergeResult.WAITING, Obstacle.CHECKS)],
)  # fmt: skip
async def test_text_of_the_merge_queue_decides(
    forge: Forge, opened: str, github: GitHub, shop: Repository, text: str, result: MergeResult, obstacle: Obstacle
) -> None:
    """GraphQL has the status 200 for errors, so that the text decides."""
    shop.protect("main", merge_queue=True)
    github.refuse("graphql/enqueuePullRequest", Reply(200, {"data": None, "errors": [{"message": text}]}))
    outcome = await forge.merge(1, opened)
    assert (outcome.result, outcome.obstacle) == (result, obstacle)


def test_place_of_graphql() -> None:
    """GraphQL is found at github.com, on GitHub Enterprise Server, and at an operator's address."""
    enterprise = ForgeHost(ForgeKind.GITHUB, "https://github.example.com")
    hosts = (GITHUB, enterprise, ForgeHost(ForgeKind.GITHUB, "https://x.ghe.com", "https://api.x.ghe.com/"))
    assert [graphql_url(host.api_url) for host in hosts] == [
        "https://api.github.com/graphql",
        "https://github.example.com/api/graphql",
        "https://api.x.ghe.com/graphql",
    ]
