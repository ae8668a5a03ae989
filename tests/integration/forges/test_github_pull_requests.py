"""Pull requests of GitHub are found or created once, whatever response is lost, and are updated."""

from dataclasses import replace

import pytest

from spawner.forges.body_section import new_section
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import ChecksState, Forge, Obstacle, ReviewsState, Verdict
from tests.doubles.forges.faults import Way
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub
from tests.doubles.forges.github_faults import primary_limit, secondary_limit
from tests.integration.forges.conftest import DRAFT, head_of, pull_of, settled


async def test_branch_that_the_api_does_not_see_yet_is_transient(forge: Forge, shop: Repository) -> None:
    """Right after a push GitHub may refuse the head as invalid, which is transient."""
    shop.unseen = 1
    with pytest.raises(ForgeError) as failed:
        await forge.find_or_create_pull_request(DRAFT)
    assert not failed.value.permanent
    assert failed.value.retry_after
    assert (await forge.find_or_create_pull_request(DRAFT)).number == 1


async def test_branch_without_commits_is_refused(forge: Forge, shop: Repository) -> None:
    """The refusal is permanent, and its text states the reason."""
    shop.git.commit("same", {}, "none", base="main")
    shop.git.run("update-ref", "refs/heads/same", head_of(shop, "main"))
    with pytest.raises(ForgeError, match="No commits between main and same") as failed:
        await forge.find_or_create_pull_request(replace(DRAFT, head="same"))
    assert failed.value.fault is ForgeFault.REFUSED


async def test_body_and_labels_are_updated(forge: Forge, shop: Repository) -> None:
    """Only differences are sent; labels of users remain."""
    await forge.find_or_create_pull_request(replace(DRAFT, body=new_section("Sums."), labels=("agent",)))
    pull_of(shop).labels.append(shop.label("important"))
    changed = replace(DRAFT, title="Total", body=new_section("Adds.\n"), labels=("Agent", "sum"))
    await forge.find_or_create_pull_request(changed)
    pull = pull_of(shop)
    assert (pull.title, pull.body) == (DRAFT.title, new_section("Adds."))
    assert [label.name for label in pull.labels] == ["agent", "important", "sum"]


async def test_reviewers_are_requested_once(forge: Forge, github: GitHub, shop: Repository) -> None:
    """A user who has reviewed is not requested again, although GitHub no longer lists the request."""
    draft = replace(DRAFT, reviewers=("grace",))
    await forge.find_or_create_pull_request(draft)
    github.review(shop, 1, "COMMENTED", "grace")
    pull_of(shop).reviewers.clear()
    await forge.find_or_create_pull_request(draft)
    assert github.calls.number("pulls/request-reviewers") == 1


async def test_unknown_reviewer_does_not_prevent_the_pull_request(forge: Forge) -> None:
    """The refused reviewer is reported."""
    created = await forge.find_or_create_pull_request(replace(DRAFT, reviewers=("stranger",)))
    assert created.number == 1
    assert "not a collaborator" in created.unapplied[0]


async def test_conflict_is_seen(forge: Forge, shop: Repository) -> None:
    """The state of the pull request shows the conflict."""
    await forge.find_or_create_pull_request(DRAFT)
    shop.git.commit("main", {"sum.py": "total = 3\n"}, "other")
    await settled(forge)
    found = (await forge.pull_request(1)).mergeability
    assert (found.verdict, found.obstacle) == (Verdict.NO, Obstacle.CONFLICT)


async def test_checks_of_both_kinds_are_counted(forge: Forge, github: GitHub, shop: Repository) -> None:
    """No check is no success, an unreported required check is pending, and statuses count like check runs."""
    shop.protect("main", checks=["ci"])
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    commit, now = head_of(shop), github.clock.now()
    status = await forge.pull_request(1)
    assert (status.checks.state, status.checks.pending) == (ChecksState.PENDING, ("ci",))
    assert status.mergeability.obstacle is Obstacle.CHECKS
    shop.report_check(commit, "ci", "success", now)
    assert (await forge.pull_request(1)).checks.state is ChecksState.PASSED
    shop.report_status(commit, "lint", "failure", now)
    found = (await forge.pull_request(1)).checks
    assert (found.state, found.failed, found.passed) == (ChecksState.FAILED, ("lint",), ("ci",))


async def test_reviews_are_those_of_the_head_commit(forge: Forge, github: GitHub, shop: Repository) -> None:
    """An approval of an earlier commit is missing again after a push."""
    shop.protect("main", approvals=1)
    await forge.find_or_create_pull_request(DRAFT)
    assert (await forge.pull_request(1)).reviews.state is ReviewsState.REQUIRED
    github.review(shop, 1, "CHANGES_REQUESTED", "grace")
    assert (await forge.pull_request(1)).reviews.state is ReviewsState.CHANGES_REQUESTED
    github.review(shop, 1, "APPROVED", "grace")
    assert (await forge.pull_request(1)).reviews.state is ReviewsState.APPROVED
    shop.git.commit("feature/sum", {"sum.py": "total = 2\n"}, "more")
    found = (await forge.pull_request(1)).reviews
    assert (found.state, found.missing) == (ReviewsState.REQUIRED, 1)


async def test_unchanged_state_costs_nothing(forge: Forge, github: GitHub) -> None:
    """The requests of the second poll are conditional, and their responses 304."""
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    before = len(github.calls)
    first = await forge.pull_request(1)
    assert {call.status for call in github.calls[before:]} == {304}
    assert first.mergeability.verdict is Verdict.YES


async def test_one_pull_request_needs_few_requests(forge: Forge, github: GitHub) -> None:
    """It takes two requests to create it, and five to poll it."""
    await forge.find_or_create_pull_request(DRAFT)
    assert github.calls.number() == 2
    await forge.pull_request(1)
    assert github.calls.number() == 7


async def test_response_that_is_cut_off_is_transient(forge: Forge, github: GitHub) -> None:
    """Half of a body is a transient failure."""
    github.break_off("repos/get", Way.CUT)
    with pytest.raises(ForgeError) as failed:
        await forge.default_branch()
    assert not failed.value.permanent


async def test_secondary_limit_stops_all_requests(forge: Forge, github: GitHub) -> None:
    """No request is sent until `retry-after` has passed."""
    github.refuse("repos/get", secondary_limit(60))
    waits = []
    for _ in range(2):
        with pytest.raises(ForgeError) as failed:
            await forge.default_branch()
        assert not failed.value.permanent
        waits.append(failed.value.retry_after)
    assert waits[0] == 60
    assert waits[1] is not None
    assert 0 < waits[1] <= 60
    assert len(github.calls) == 1


async def test_primary_limit_is_visible(forge: Forge, github: GitHub, forges: Forges) -> None:
    """The state has what remains of the limit; an exceeded limit stops requests until its reset."""
    await forge.default_branch()
    (limit,) = forges.rate_limits().values()
    assert (limit.limit, limit.remaining) == (5000, 4999)
    github.refuse("repos/get", primary_limit(int(github.clock.now().timestamp()) + 1800))
    for _ in range(2):
        with pytest.raises(ForgeError) as failed:
            await forge.default_branch()
        assert failed.value.retry_after
        assert 1700 < failed.value.retry_after <= 1800
    assert len(github.calls) == 2
