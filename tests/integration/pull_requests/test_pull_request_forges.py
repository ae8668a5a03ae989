"""The same workflow at GitLab and Gitea, from the pull request to the deletion of the branch."""

from pathlib import Path

import pytest

from sandherd.contracts.states import BranchState
from sandherd.stack.broker import Broker
from spawner.forges.locations import ForgeKind
from tests.integration.forges.sites import opened_site
from tests.integration.pull_requests.world import MERGED, World, opened_world
from tests.polling import eventually


@pytest.mark.parametrize("kind", [ForgeKind.GITLAB, ForgeKind.GITEA])
async def test_pull_request_is_merged_once_checks_and_reviews_permit_it(
    kind: ForgeKind, herd: Broker, tmp_path: Path
) -> None:
    """The pull request is not merged while the check fails or the approval is missing."""
    async with opened_site(kind) as site, opened_world(herd, site, tmp_path) as world:
        site.require()
        await world.branch(MERGED)
        await world.run()
        site.report(passed=False)
        await world.poll()
        assert not site.shop.pulls[1].merged
        site.report(passed=True)
        site.approve()
        await world.poll()
        assert site.shop.pulls[1].merged
        await eventually(lambda: _deleted(world))
        assert site.shop.git.head("feature/sum") is None
        await world.published("branch.merged", 1)


async def _deleted(world: World) -> bool:
    return (await world.record()).state is BranchState.DELETED
