"""Properties of GitLab alone: auto-merge, 401 for a missing permission, and reviewers by id."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import Forge, MergeMethod, MergeResult, Obstacle, PullRequestState
from spawner.forges.gitlab import Gitlab
from spawner.forges.gitlab_replies import GitlabUser, MergeRequest
from spawner.forges.locations import ForgeKind
from tests.doubles.forges.replies import Reply
from tests.integration.forges.conftest import DRAFT, settled
from tests.integration.forges.sites import GitlabSite, opened_site


@pytest.fixture
async def site() -> AsyncIterator[GitlabSite]:
    async with opened_site(ForgeKind.GITLAB) as opened:
        assert isinstance(opened, GitlabSite)
        yield opened


@pytest.fixture
async def forge(site: GitlabSite, forges: Forges) -> Forge:
    """The project, with a merge request that GitLab has checked."""
    token = site.token()
    forges.add_sources(site.repository.host, [StoredTokens(lambda: token)])
    opened = forges.of(site.repository)
    await opened.find_or_create_pull_request(DRAFT)
    await settled(opened)
    return opened


async def test_merge_when_the_pipeline_succeeds(forge: Forge, site: GitlabSite) -> None:
    """The merge request is queued, and GitLab merges it later."""
    site.gitlab.settings["team/shop"].pipeline = True
    site.report(passed=None)
    assert (await forge.merge(1, site.head())).result is MergeResult.WAITING
    assert (await forge.merge(1, site.head(), queue=True)).result is MergeResult.QUEUED
    site.report(passed=True)
    assert (await forge.pull_request(1)).pull_request.state is PullRequestState.MERGED


async def test_missing_permission_to_merge_is_denied(forge: Forge, site: GitlabSite) -> None:
    """GitLab responds 401 for that, too; the token is not replaced."""
    site.gitlab.settings["team/shop"].cannot_merge.add("ada")
    with pytest.raises(ForgeError) as failed:
        await forge.merge(1, site.head())
    assert failed.value.fault is ForgeFault.DENIED
    assert site.double.calls.number("merge") == 1


async def test_rebase_is_a_setting_of_the_project(forge: Forge, site: GitlabSite) -> None:
    """A project that makes merge commits refuses it, without a request to merge."""
    outcome = await forge.merge(1, site.head(), MergeMethod.REBASE)
    assert (outcome.result, outcome.obstacle) == (MergeResult.REFUSED, Obstacle.METHOD)
    assert site.double.calls.number("merge") == 0


async def test_head_that_only_the_merge_sees_as_moved_is_not_merged(forge: Forge, site: GitlabSite) -> None:
    """A get of the merge request may be older than what the merge knows."""
    site.double.refuse("merge", Reply(409, {"message": f"SHA does not match HEAD of source branch: {'b' * 40}"}))
    outcome = await forge.merge(1, site.head())
    assert (outcome.result, outcome.obstacle) == (MergeResult.REFUSED, Obstacle.HEAD_MOVED)


class UserApi:
    """The part of the API that searches users, which the double does not serve."""

    def __init__(self) -> None:
        self.searches: list[str] = []

    async def get_all(self, model: type[GitlabUser], path: str, values: dict[str, Any]) -> list[GitlabUser]:
        self.searches.append(values["username"])
        return [GitlabUser(id=9, username="grace")] if values["username"] == "grace" else []


async def test_reviewers_are_added_by_their_ids() -> None:
    """Existing reviewers remain; one that does not exist is reported."""
    api = UserApi()
    request = MergeRequest(
        iid=1, state="opened", source_branch="a", target_branch="b", reviewers=[GitlabUser(id=3, username="Bob")]
    )
    draft = replace(DRAFT, reviewers=("bob", "grace", "stranger"))
    found = await Gitlab(api)._reviewers(request, draft)  # type: ignore[arg-type]  # a part of the API
    assert found == ([3, 9], ["reviewers were refused: there is no user stranger"])
    assert api.searches == ["grace", "stranger"]
    assert await Gitlab(api)._reviewers(request, replace(DRAFT, reviewers=("bob",))) == ([], [])  # type: ignore[arg-type]  # the same
