"""Lists of forges that have several pages: what is on the last one decides as well."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from spawner.forges.api import ForgeApi
from spawner.forges.credentials import StoredTokens
from spawner.forges.faults import ForgeError
from spawner.forges.forge import ChecksState, Forge
from spawner.forges.gitea import Gitea
from spawner.forges.github import Github
from spawner.forges.http_client import HttpClient, Reply
from spawner.forges.locations import ForgeHost, ForgeKind, ForgeRepository

HEAD = "a" * 40
PULL = {
    "number": 1, "state": "open", "mergeable": True, "mergeable_state": "clean",
    "head": {"ref": "feature/sum", "sha": HEAD}, "base": {"ref": "main", "sha": HEAD},
}  # fmt: skip


class Pages(HttpClient):
    """Responses about one pull request whose commit has this many statuses, of which the last one failed."""

    def __init__(self, kind: ForgeKind, statuses: int) -> None:
        super().__init__()
        self.github = kind is ForgeKind.GITHUB
        name = "state" if self.github else "status"
        self.statuses = [{"context": f"c{number}", name: "success"} for number in range(statuses - 1)]
        self.statuses.append({"context": "last", name: "failure"})

    async def request(self, method: str, url: str, headers: Any, body: bytes = b"") -> Reply:  # as its base
        parts = urlsplit(url)
        query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        last, following = parts.path.rsplit("/", 1)[-1], {}
        known: dict[str, Any] = {"reviews": [], "main": [] if self.github else {}, "check-runs": {"check_runs": []}}
        found: Any = known.get(last, PULL)
        if last == "status":
            size, page = query["per_page" if self.github else "limit"], query.get("page", 1)
            shown = self.statuses[(page - 1) * size : page * size]
            found = {"statuses": shown or (None if not self.github else [])}
            if self.github and page * size < len(self.statuses):
                following = {"link": f'<{url.split("?", maxsplit=1)[0]}?per_page={size}&page={page + 1}>; rel="next"'}
        return Reply(200, {"content-type": "application/json", **following}, json.dumps(found).encode())


def forge_with(kind: ForgeKind, statuses: int) -> Forge:
    host = ForgeHost(kind, "https://git.example.com")
    api = ForgeApi(
        ForgeRepository(host, "team", "shop"), StoredTokens(lambda: "secret-token"), Pages(kind, statuses), {}
    )
    return Github(api) if kind is ForgeKind.GITHUB else Gitea(api)


@pytest.mark.parametrize("kind", [ForgeKind.GITHUB, ForgeKind.GITEA])
@pytest.mark.parametrize("statuses", [1, 50, 101, 230])
async def test_failed_status_on_the_last_page_decides(kind: ForgeKind, statuses: int) -> None:
    """Otherwise a policy would merge the pull request."""
    status = await forge_with(kind, statuses).pull_request(1)
    assert (status.checks.state, status.checks.failed) == (ChecksState.FAILED, ("last",))


async def test_list_of_endless_pages_ends() -> None:
    """Otherwise a forge could fill the memory with large pages of few entries."""
    forge = forge_with(ForgeKind.GITHUB, 2)
    pages = forge._api._http  # type: ignore[attr-defined]  # as opened above
    sent = list[str]()
    send: Callable[..., Awaitable[Reply]] = pages.request

    async def endless(method: str, url: str, *rest: Any) -> Reply:
        reply = await send(method, url, *rest)
        if "/reviews" not in url:
            return reply
        sent.append(url)
        following = f'<https://git.example.com/api/v3/x/reviews?page={len(sent)}>; rel="next"'
        review = [{"state": "COMMENTED", "user": {"login": "a"}}]
        return Reply(200, {"content-type": "application/json", "link": following}, json.dumps(review).encode())

    pages.request = endless
    with pytest.raises(ForgeError, match="pages"):
        await forge.pull_request(1)
    assert len(sent) == 50


@pytest.mark.parametrize("kind", [ForgeKind.GITHUB, ForgeKind.GITEA])
async def test_too_many_statuses_are_an_error(kind: ForgeKind) -> None:
    """The statuses that are not read could decide."""
    with pytest.raises(ForgeError, match="more than"):
        await forge_with(kind, 1200).pull_request(1)
