"""Pull requests of Gitea: found or created once, kept up to date, and merged only as expected."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import (
    ChecksState,
    Forge,
    MergeMethod,
    MergeResult,
    Obstacle,
    PullRequestState,
    ReviewsState,
    Verdict,
)
from spawner.forges.locations import ForgeHost, ForgeKind, ForgeRepository
from spawner.repositories.git import RemoteRepository
from spawner.repositories.mirror import NO_COMMIT, Mirror
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.gitea import Gitea
from tests.doubles.forges.replies import Reply
from tests.integration.forges.conftest import DRAFT, head_of, pull_of, settled


@pytest.fixture
async def gitea() -> AsyncIterator[Gitea]:
    """Gitea; it fails the test if a request is not as documented, or a merge was unguarded."""
    async with Gitea(Clock()) as running:
        yield running
    assert running.unguarded_merges == []
    assert running.calls.hasty_writes() == []


@pytest.fixture
def shop(gitea: Gitea) -> Repository:
    """A repository with a commit on `main` and another on `feature/sum`."""
    made = gitea.create_repository("team/shop")
    made.git.commit("feature/sum", {"sum.py": "total = 1\n"}, "sum", base="main")
    return made


@pytest.fixture
def repository(gitea: Gitea, shop: Repository) -> ForgeRepository:
    return ForgeRepository(ForgeHost(ForgeKind.GITEA, gitea.url), "team", "shop")


@pytest.fixture
def forge(gitea: Gitea, forges: Forges, repository: ForgeRepository) -> Forge:
    """The repository by our client."""
    token = gitea.token("ada")
    forges.add_token(repository.host, lambda: token)
    return forges.of(repository)


async def test_pull_request_is_created_once_and_updated(forge: Forge, gitea: Gitea, shop: Repository) -> None:
    """Labels are created, as at the other forges; what is as it should be needs no write."""
    draft = replace(DRAFT, labels=("agent",), reviewers=("grace",))
    created = await forge.find_or_create_pull_request(draft)
    assert (created.number, created.head_commit, created.unapplied) == (1, head_of(shop), ())
    writes = sum(call.is_write for call in gitea.calls)
    assert await forge.find_or_create_pull_request(draft) == created
    assert sum(call.is_write for call in gitea.calls) == writes
    await forge.find_or_create_pull_request(replace(draft, title="Total"))
    pull = pull_of(shop)
    assert (pull.title, [label.name for label in pull.labels]) == ("Total", ["agent"])
    assert [account.login for account in pull.reviewers] == ["grace"]


async def test_lost_response_creates_no_second_pull_request(forge: Forge, gitea: Gitea, shop: Repository) -> None:
    """It is found by its branches."""
    gitea.lose("repo_create_pull_request")
    with pytest.raises(ForgeError) as failed:
        await forge.find_or_create_pull_request(DRAFT)
    assert not failed.value.permanent
    assert (await forge.find_or_create_pull_request(DRAFT)).number == 1
    gitea.refuse("repo_list_pull_requests", Reply(200, []))
    assert (await forge.find_or_create_pull_request(DRAFT)).number == 1
    assert len(shop.pulls) == 1


async def test_draft_is_marked_by_its_title(forge: Forge, shop: Repository) -> None:
    """An update leaves it a draft."""
    draft = replace(DRAFT, draft=True)
    assert (await forge.find_or_create_pull_request(draft)).draft
    await forge.find_or_create_pull_request(replace(draft, title="Total"))
    assert pull_of(shop).title == "WIP: Total"
    await settled(forge)
    assert (await forge.merge(1, head_of(shop))).result is not MergeResult.MERGED


async def test_closed_pull_request_with_this_commit_is_found(forge: Forge, shop: Repository) -> None:
    """A user closed it."""
    draft = replace(DRAFT, commit=head_of(shop))
    await forge.find_or_create_pull_request(draft)
    pull_of(shop).state = "closed"
    assert (await forge.find_or_create_pull_request(draft)).state is PullRequestState.CLOSED


async def test_unknown_reviewer_and_branch(forge: Forge) -> None:
    """The first does not prevent the pull request, the second may be seen later."""
    created = await forge.find_or_create_pull_request(replace(DRAFT, reviewers=("stranger",)))
    assert "stranger" in created.unapplied[0]
    with pytest.raises(ForgeError) as failed:
        await forge.find_or_create_pull_request(replace(DRAFT, head="absent"))
    assert not failed.value.permanent


async def test_checks_and_reviews(forge: Forge, gitea: Gitea, shop: Repository) -> None:
    """The rules of the base branch say what is required."""
    gitea.protect(shop, "main", checks=["ci"], approvals=1)
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    status = await forge.pull_request(1)
    assert (status.checks.state, status.checks.pending) == (ChecksState.PENDING, ("ci",))
    assert (status.reviews.state, status.mergeability.obstacle) == (ReviewsState.REQUIRED, Obstacle.REVIEWS)
    first = await forge.merge(1, head_of(shop))
    assert (first.result, first.obstacle) == (MergeResult.WAITING, Obstacle.CHECKS)
    shop.report_status(head_of(shop), "ci", "success", gitea.clock.now())
    second = await forge.merge(1, head_of(shop))
    assert (second.result, second.obstacle) == (MergeResult.WAITING, Obstacle.REVIEWS)
    gitea.review(shop, 1)
    status = await forge.pull_request(1)
    assert (status.checks.state, status.reviews.state) == (ChecksState.PASSED, ReviewsState.APPROVED)
    assert status.mergeability.verdict is Verdict.YES
    assert (await forge.merge(1, head_of(shop))).result is MergeResult.MERGED


@pytest.mark.parametrize("method", MergeMethod)
async def test_merge_waits_until_gitea_has_checked(
    forge: Forge, gitea: Gitea, shop: Repository, method: MergeMethod
) -> None:
    """It is not sent before; the commit is that of the base branch, and a lost response is found."""
    await forge.find_or_create_pull_request(DRAFT)
    first = await forge.merge(1, head_of(shop), method)
    assert (first.result, first.obstacle) == (MergeResult.WAITING, Obstacle.COMPUTING)
    assert gitea.calls.number("repo_merge_pull_request") == 0
    gitea.lose("repo_merge_pull_request")
    with pytest.raises(ForgeError):
        await forge.merge(1, head_of(shop), method)
    again = await forge.merge(1, head_of(shop), method)
    assert (again.result, again.commit) == (MergeResult.MERGED, head_of(shop, "main"))
    assert gitea.calls.number("repo_merge_pull_request") == 1


async def test_head_that_moved_is_not_merged(forge: Forge, shop: Repository) -> None:
    """Only the expected commit is."""
    await forge.find_or_create_pull_request(DRAFT)
    old = head_of(shop)
    shop.git.commit("feature/sum", {"sum.py": "evil = 1\n"}, "evil")
    await settled(forge)
    outcome = await forge.merge(1, old)
    assert (outcome.result, outcome.obstacle) == (MergeResult.REFUSED, Obstacle.HEAD_MOVED)


async def test_method_that_is_not_permitted_is_refused(forge: Forge, shop: Repository) -> None:
    """By the text of the refusal."""
    shop.methods = frozenset({"merge"})
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    assert (await forge.merge(1, head_of(shop), MergeMethod.SQUASH)).obstacle is Obstacle.METHOD


async def test_repository_issues_and_rules(forge: Forge, gitea: Gitea, shop: Repository) -> None:
    """An issue is none if it is a pull request; a rule protects a branch before it exists."""
    issue = gitea.open_issue(shop, "Sum is missing")
    created = await forge.find_or_create_pull_request(DRAFT)
    assert [await forge.issue_exists(number) for number in (issue.number, created.number, 99)] == [True, False, False]
    assert await forge.default_branch() == "main"
    gitea.protect(shop, "release/*", approvals=1)
    branches = ("release/2", "feature/sum", "absent")
    assert [await forge.branch_protected(name) for name in branches] == [True, False, False]


async def test_token_is_denied_without_the_scope(forges: Forges, gitea: Gitea, repository: ForgeRepository) -> None:
    """The text names the scope that is missing."""
    token = gitea.token("ada", {"repository": "read"})
    forges.add_token(repository.host, lambda: token)
    with pytest.raises(ForgeError, match="write:repository") as failed:
        await forges.of(repository).find_or_create_pull_request(DRAFT)
    assert failed.value.fault is ForgeFault.DENIED


async def test_token_pushes_with_git(
    forge: Forge, forges: Forges, repository: ForgeRepository, shop: Repository, tmp_path: Path
) -> None:
    """The same token as the API's."""
    credential = await forges.credentials(repository.host).git_credential(repository)
    remote = RemoteRepository(f"{repository.url}.git", credential)
    mirror = Mirror(tmp_path / "mirror.git")
    await mirror.fetch(remote)
    await mirror.create_branch("feature/new", head_of(shop))
    await mirror.push(remote, "feature/new", expected=NO_COMMIT)
    assert shop.git.head("feature/new") == head_of(shop)
