"""The common behaviour of all forges, by one interface: each test is for GitHub, GitLab and Gitea."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from spawner.forges.body_section import new_section
from spawner.forges.credentials import StoredTokens
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
from spawner.forges.locations import ForgeKind, forge_of
from spawner.repositories.git import RemoteRepository
from spawner.repositories.mirror import NO_COMMIT, Mirror
from tests.doubles.forges.faults import Way, html, huge, nested
from tests.doubles.forges.replies import Reply
from tests.http_servers import stop_server
from tests.integration.forges.conftest import DRAFT, settled
from tests.integration.forges.sites import Site, opened_site


class Stranger:
    """Another server, to which a forge refers, and which should get no credential."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[web.Request] = []

    async def receive(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        return web.json_response({"default_branch": "evil"} if request.path == "/" else [])


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    other = Stranger()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", other.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    other.url = "http://{}:{}".format(*runner.addresses[0])
    yield other
    await stop_server(runner)


@pytest.fixture(params=ForgeKind)
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async with opened_site(request.param) as opened:
        yield opened


@pytest.fixture
def forge(site: Site, forges: Forges) -> Forge:
    """Our client of the repository, as its URL is resolved."""
    found = forge_of(f"{site.repository.url}.git", [site.repository.host])
    assert found == site.repository
    token = site.token()
    forges.add_sources(found.host, [StoredTokens(lambda: token)])
    return forges.of(found)


@pytest.fixture
async def mergeable(forge: Forge, site: Site) -> str:
    """The head of a pull request that can be merged."""
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    assert (await forge.pull_request(1)).mergeability.verdict is Verdict.YES
    return site.head()


async def test_pull_request_is_created_once_and_updated(forge: Forge, site: Site) -> None:
    """An update without a difference sends no write; labels of users remain."""
    draft = replace(DRAFT, labels=("agent",))
    created = await forge.find_or_create_pull_request(draft)
    assert (created.number, created.state, created.head_commit) == (1, PullRequestState.OPEN, site.head())
    assert (created.head, created.base, created.draft) == ("feature/sum", "main", False)
    assert created.url.startswith(f"{site.repository.url}/")
    assert created.unapplied == ()
    writes = site.writes()
    assert await forge.find_or_create_pull_request(draft) == created
    assert site.writes() == writes
    pull = site.shop.pulls[1]
    pull.labels.append(site.shop.label("important"))
    await forge.find_or_create_pull_request(replace(draft, title="Total", body=new_section("Adds.")))
    assert (pull.title, pull.body) == (draft.title, draft.body), "what users may have written stays"
    before, pull.body = draft.body, f"Mine.\n\n{new_section('Sums.')}\n\nMine, too."
    await forge.find_or_create_pull_request(replace(draft, body=new_section("Adds.")))
    assert pull.body == f"Mine.\n\n{new_section('Adds.')}\n\nMine, too."
    pull.body = before
    assert {label.name for label in pull.labels} == {"agent", "important"}
    assert len(site.shop.pulls) == 1


async def test_lost_response_creates_no_second_pull_request(forge: Forge, site: Site) -> None:
    """The failure is transient, and the next call finds the pull request that was created."""
    site.double.lose(site.create)
    with pytest.raises(ForgeError) as failed:
        await forge.find_or_create_pull_request(DRAFT)
    assert (failed.value.fault, failed.value.permanent) == (ForgeFault.UNAVAILABLE, False)
    assert (await forge.find_or_create_pull_request(DRAFT)).number == 1
    assert len(site.shop.pulls) == 1


async def test_pull_request_created_by_another_meanwhile_is_found(forge: Forge, site: Site) -> None:
    """The pull request is not in the list yet, and its creation is refused because it exists."""
    await forge.find_or_create_pull_request(DRAFT)
    site.double.refuse(site.listing, Reply(200, []))
    assert (await forge.find_or_create_pull_request(DRAFT)).number == 1
    assert site.double.calls.number(site.create) == 2
    assert len(site.shop.pulls) == 1


async def test_two_callers_at_once_create_one(forge: Forge, site: Site) -> None:
    """Both callers get the one pull request."""
    found = await asyncio.gather(*(forge.find_or_create_pull_request(DRAFT) for _ in range(2)))
    assert [one.number for one in found] == [1, 1]
    assert len(site.shop.pulls) == 1


async def test_branch_that_is_not_seen_is_transient(forge: Forge) -> None:
    """A branch that was pushed right before may not be seen: that is transient."""
    with pytest.raises(ForgeError) as failed:
        await forge.find_or_create_pull_request(replace(DRAFT, head="absent"))
    assert not failed.value.permanent
    assert failed.value.retry_after


async def test_closed_pull_request_with_this_commit_is_not_replaced(forge: Forge, site: Site) -> None:
    """A pull request that a user closed is replaced only after a new commit."""
    draft = replace(DRAFT, commit=site.head())
    await forge.find_or_create_pull_request(draft)
    site.shop.pulls[1].state = "closed"
    assert (await forge.find_or_create_pull_request(draft)).state is PullRequestState.CLOSED
    site.shop.git.commit("feature/sum", {"sum.py": "total = 2\n"}, "more")
    assert (await forge.find_or_create_pull_request(replace(draft, commit=site.head()))).number == 2


async def test_draft_remains_one_and_is_not_merged(forge: Forge, site: Site) -> None:
    """An update does not change that it is a draft."""
    draft = replace(DRAFT, draft=True)
    assert (await forge.find_or_create_pull_request(draft)).draft
    pull = site.shop.pulls[1]
    title, pull.body = pull.title, new_section("Sums.")
    await forge.find_or_create_pull_request(replace(draft, body=new_section("Adds.")))
    assert pull.draft
    assert (pull.title, pull.body) == (title, new_section("Adds."))
    await settled(forge)
    status = await forge.pull_request(1)
    assert (status.mergeability.verdict, status.mergeability.obstacle) == (Verdict.NO, Obstacle.DRAFT)
    assert (await forge.merge(1, site.head())).result is not MergeResult.MERGED
    await forge.mark_ready(1)
    writes = site.writes()
    await forge.mark_ready(1)
    assert site.writes() == writes
    assert (pull.draft, pull.title) == (False, draft.title)
    await settled(forge)
    assert (await forge.merge(1, site.head())).result is MergeResult.MERGED


async def test_checks_and_reviews_decide(forge: Forge, site: Site) -> None:
    """No check is no success; what is missing means waiting, and then it is merged."""
    site.require()
    await forge.find_or_create_pull_request(DRAFT)
    await settled(forge)
    first = await forge.pull_request(1)
    assert first.mergeability.verdict is not Verdict.YES
    assert (first.checks.state is ChecksState.PASSED, first.reviews.state) == (False, ReviewsState.REQUIRED)
    site.report(passed=False)
    found = (await forge.pull_request(1)).checks
    assert (found.state, found.failed) == (ChecksState.FAILED, ("pipeline",))
    assert (await forge.merge(1, site.head())).result is MergeResult.WAITING
    site.report(passed=None)
    assert (await forge.pull_request(1)).checks.pending == ("pipeline",)
    site.approve()
    outcome = await forge.merge(1, site.head())
    assert (outcome.result, outcome.obstacle) == (MergeResult.WAITING, Obstacle.CHECKS)
    site.report(passed=True)
    status = await forge.pull_request(1)
    assert (status.checks.state, status.reviews.state) == (ChecksState.PASSED, ReviewsState.APPROVED)
    assert status.reviews.approved_by == ("grace",)
    assert status.mergeability.verdict is Verdict.YES
    assert (await forge.merge(1, site.head())).result is MergeResult.MERGED


async def test_merge_waits_until_the_forge_has_computed(forge: Forge, site: Site) -> None:
    """No merge is sent before; after a lost response the merge is found, and it is the only one."""
    await forge.find_or_create_pull_request(DRAFT)
    first = await forge.merge(1, site.head())
    assert (first.result, first.obstacle) == (MergeResult.WAITING, Obstacle.COMPUTING)
    assert site.double.calls.number(site.merge) == 0
    site.double.lose(site.merge)
    with pytest.raises(ForgeError) as failed:
        await forge.merge(1, site.head())
    assert not failed.value.permanent
    again = await forge.merge(1, site.head())
    assert (again.result, again.commit) == (MergeResult.MERGED, site.head("main"))
    assert site.double.calls.number(site.merge) == 1
    found = (await forge.pull_request(1)).pull_request
    assert (found.state, found.merged_commit) == (PullRequestState.MERGED, again.commit)


@pytest.mark.parametrize("method", [MergeMethod.MERGE, MergeMethod.SQUASH])
async def test_method_is_used(forge: Forge, site: Site, mergeable: str, method: MergeMethod) -> None:
    """The agent's commit is part of the base branch only with the method `merge`."""
    assert (await forge.merge(1, mergeable, method)).commit == site.head("main")
    assert site.shop.git.contains(site.head("main"), mergeable) is (method is MergeMethod.MERGE)


async def test_head_that_moved_is_not_merged(forge: Forge, site: Site, mergeable: str) -> None:
    """A head that moves before or during the request is not merged, as the commit is always sent."""
    main = site.head("main")
    fault = site.double.break_off(site.merge, Way.DELAYED)
    merging = asyncio.create_task(forge.merge(1, mergeable))
    await fault.reached.wait()
    site.shop.git.commit("feature/sum", {"sum.py": "evil = 1\n"}, "evil")
    fault.released.set()
    first = await merging
    await settled(forge)
    second = await forge.merge(1, mergeable)
    assert [first.result, second.result] != [MergeResult.MERGED] * 2
    assert (second.result, second.obstacle) == (MergeResult.REFUSED, Obstacle.HEAD_MOVED)
    assert first.result is not MergeResult.MERGED
    assert site.head("main") == main
    (sent,) = site.double.calls.of(site.merge)
    assert mergeable in sent.body.values()


async def test_conflict_is_not_merged(forge: Forge, site: Site, mergeable: str) -> None:
    """A conflict is not merged; a forge may need time to see it."""
    site.shop.git.commit("main", {"sum.py": "total = 3\n"}, "other")
    await settled(forge)
    assert (await forge.pull_request(1)).mergeability.verdict is not Verdict.YES
    assert (await forge.merge(1, mergeable)).result is not MergeResult.MERGED


async def test_merge_of_a_closed_pull_request_is_refused(forge: Forge, site: Site, mergeable: str) -> None:
    """The merge of a pull request that a user closed is refused."""
    site.shop.pulls[1].state = "closed"
    outcome = await forge.merge(1, mergeable)
    assert (outcome.result, outcome.obstacle) == (MergeResult.REFUSED, Obstacle.CLOSED)


async def test_repository_issues_and_rules(forge: Forge, site: Site) -> None:
    """A pull request or a missing one is no issue; a rule protects a branch before it exists."""
    issue = site.open_issue()
    created = await forge.find_or_create_pull_request(DRAFT)
    assert [await forge.issue_exists(number) for number in (issue, created.number, 99)] == [True, False, False]
    assert await forge.default_branch() == "main"
    site.protect("release/*")
    branches = ("release/2", "feature/sum", "absent")
    assert [await forge.branch_protected(name) for name in branches] == [True, False, False]


async def test_token_pushes_with_git(forge: Forge, forges: Forges, site: Site, tmp_path: Path) -> None:
    """The API's token is also git's, for this origin."""
    credential = await forges.credentials(site.repository.host).git_credential(site.repository)
    remote = RemoteRepository(f"{site.repository.url}.git", credential)
    mirror = Mirror(tmp_path / "mirror.git")
    await mirror.fetch(remote)
    await mirror.reset_branch("feature/new", site.head())
    await mirror.push(remote, "feature/new", expected=NO_COMMIT)
    assert site.shop.git.head("feature/new") == site.head()


@pytest.mark.parametrize(
    "reply",
    [html(), html(200), huge(9_000_000), nested(100_000), Reply(200, [1]), Reply(200, {"default_branch": 5}),
     Reply(204), Reply(299, {})],
    ids=["502", "page", "huge", "nested", "list", "type", "empty", "299"],
)  # fmt: skip
async def test_hostile_response_is_an_error_of_ours(forge: Forge, site: Site, reply: Reply) -> None:
    """Any response in place of a repository is an error of our own."""
    site.double.refuse(site.default, reply)
    with pytest.raises(ForgeError):
        await forge.default_branch()
    assert await forge.default_branch() == "main"


async def test_next_page_elsewhere_is_not_requested(forge: Forge, site: Site, stranger: Stranger) -> None:
    """The credential is sent only to the API's host, and a list does not continue forever."""
    authority = stranger.url.removeprefix("http://")
    targets = (stranger.url, f"{site.double.url}@{authority}/x", "http://[/", f"{site.double.url}/../x")
    for target in targets:
        site.double.refuse(site.listing, Reply(200, [{}], {"link": f'<{target}>; rel="next"'}))
        with pytest.raises(ForgeError):
            await forge.find_or_create_pull_request(DRAFT)
    assert len(site.double.calls) == len(targets)
    assert stranger.requests == []
    assert site.shop.pulls == {}


async def test_redirect_is_not_followed(forge: Forge, site: Site, stranger: Stranger) -> None:
    """A redirect would send the credential elsewhere; a moved repository is not found."""
    for status in (301, 302, 307, 308):
        site.double.refuse(site.default, Reply(status, None, {"location": stranger.url}))
        with pytest.raises(ForgeError) as failed:
            await forge.default_branch()
        assert failed.value.fault is ForgeFault.NOT_FOUND
    assert stranger.requests == []


async def test_token_is_in_no_message(forge: Forge, site: Site) -> None:
    """No message has the token, even if the forge returns it."""
    await forge.default_branch()
    sent = site.double.calls[-1].headers["authorization"].split()[1]
    for status in (400, 401, 403, 404, 422, 500):
        site.double.refuse(site.default, Reply(status, {"message": f"no: {sent}"}))
        with pytest.raises(ForgeError, match=r"no: \*\*\*") as failed:
            await forge.default_branch()
        assert sent not in repr(vars(failed.value))
    site.double.refuse(site.default, Reply(200, {"default_branch": sent}))
    with pytest.raises(ForgeError):
        await forge.default_branch()
