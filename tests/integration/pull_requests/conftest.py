"""A branch, a workflow and GitHub."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandherd.stack.broker import Broker
from spawner.forges.locations import ForgeKind
from tests.integration.forges.sites import opened_site
from tests.integration.pull_requests.world import World, opened_world
from tests.shared_broker import herd

__all__ = ["herd"]


@pytest.fixture
async def world(herd: Broker, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose forge is GitHub; it fails the test if a merge was blind, or without the commit."""
    async with opened_site(ForgeKind.GITHUB) as site, opened_world(herd, site, tmp_path) as made:
        yield made
