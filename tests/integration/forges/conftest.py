"""Our clients of forges, against the doubles of these forges."""

from collections.abc import AsyncIterator

import pytest

from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.forge import Forge, PullRequestDraft
from spawner.forges.locations import ForgeHost, ForgeKind, ForgeRepository
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.forge_state import Pull, Repository
from tests.doubles.forges.github import GitHub
from tests.integration.forges.sites import GithubServer

DRAFT = PullRequestDraft("feature/sum", "main", "Sum", "Adds up.")


@pytest.fixture
async def github() -> AsyncIterator[GitHub]:
    """GitHub; it fails the test if a request is not as documented, or a merge was blind or unguarded."""
    async with GithubServer(Clock()) as running:
        yield running
    assert running.blind_merges == []
    assert running.unguarded_merges == []
    assert running.calls.hasty_writes() == []


@pytest.fixture
def shop(github: GitHub) -> Repository:
    """A repository with a commit on `main` and another on `feature/sum`."""
    made = github.create_repository("team/shop")
    made.git.commit("feature/sum", {"sum.py": "total = 1\n"}, "sum", base="main")
    return made


@pytest.fixture
async def forges() -> AsyncIterator[Forges]:
    """The clients of forges."""
    opened = Forges()
    yield opened
    await opened.close()


def host_of(github: GitHub) -> ForgeHost:
    return ForgeHost(ForgeKind.GITHUB, github.url, github.api_url)


@pytest.fixture
def repository(github: GitHub, shop: Repository) -> ForgeRepository:
    """The repository as our client names it."""
    return ForgeRepository(host_of(github), "team", "shop")


@pytest.fixture
def forge(github: GitHub, forges: Forges, repository: ForgeRepository) -> Forge:
    """Our client of the repository, with a user's token."""
    token = github.person_token("ada")
    forges.add_sources(repository.host, [StoredTokens(lambda: token)])
    return forges.of(repository)


def head_of(shop: Repository, branch: str = "feature/sum") -> str:
    found = shop.git.head(branch)
    assert found is not None
    return found


async def settled(forge: Forge, number: int = 1) -> None:
    """Poll until the forge has computed the mergeability, as the double does at the second request."""
    for _ in range(2):
        await forge.pull_request(number)


def pull_of(shop: Repository, number: int = 1) -> Pull:
    return shop.pulls[number]
