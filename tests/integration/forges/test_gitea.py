"""Properties of Gitea alone: reviewers, styles and scopes by its texts, and scheduled merges."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import Forge, MergeMethod, MergeResult, Obstacle
from spawner.forges.locations import ForgeKind
from tests.doubles.forges.replies import Reply
from tests.integration.forges.conftest import DRAFT, settled
from tests.integration.forges.sites import GiteaSite, opened_site


@pytest.fixture
async def site() -> AsyncIterator[GiteaSite]:
    async with opened_site(ForgeKind.GITEA) as opened:
        assert isinstance(opened, GiteaSite)
        yield opened


@pytest.fixture
def forge(site: GiteaSite, forges: Forges) -> Forge:
    """Our client of the repository."""
    token = site.token()
    forges.add_sources(site.repository.host, [StoredTokens(lambda: token)])
    return forges.of(site.repository)


async def test_unknown_reviewer_and_branch(forge: Forge) -> None:
    """An unknown reviewer does not prevent the pull request, and an unknown branch may be seen later."""
    created = await forge.find_or_create_pull_request(replace(DRAFT, reviewers=("stranger",)))
    assert "stranger" in created.unapplied[0]
    with pytest.raises(ForgeError) as failed:
        await forge.find_or_create_pull_request(replace(DRAFT, head="absent"))
    assert not failed.value.permanent


async def test_method_that_is_not_permitted_is_refused(forge: Forge, site: GiteaSite) -> None:
    """The text of the refusal decides."""
    site.shop.methods = frozenset({"merge"})
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    assert (await forge.merge(1, site.head(), MergeMethod.SQUASH)).obstacle is Obstacle.METHOD


async def test_token_is_denied_without_the_scope(forges: Forges, site: GiteaSite) -> None:
    """The text names the missing scope."""
    token = site.gitea.token("ada", {"repository": "read"})
    forges.add_sources(site.repository.host, [StoredTokens(lambda: token)])
    with pytest.raises(ForgeError, match="write:repository") as failed:
        await forges.of(site.repository).find_or_create_pull_request(DRAFT)
    assert failed.value.fault is ForgeFault.DENIED


async def test_merge_when_checks_succeed(forge: Forge, site: GiteaSite) -> None:
    """Gitea responds 201 when it schedules a merge, and 409 if it was scheduled before."""
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    site.double.refuse("repo_merge_pull_request", Reply(201))
    assert (await forge.merge(1, site.head(), queue=True)).result is MergeResult.QUEUED
    scheduled = {"message": "pull request is already scheduled to auto merge when checks succeed", "url": ""}
    site.double.refuse("repo_merge_pull_request", Reply(409, scheduled))
    assert (await forge.merge(1, site.head(), queue=True)).result is MergeResult.QUEUED
    sent = site.double.calls.of("repo_merge_pull_request")
    assert len(sent) == 2
