"""The double of GitHub: responses that its document does not describe, which a test requests."""

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.doubles.forges import github_faults
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.faults import Fault, Way, html, huge, nested
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub
from tests.doubles.forges.replies import Reply
from tests.integration.doubles.conftest import Api

PULLS = "/repos/team/shop/pulls"
NEW = {"title": "Sum", "head": "feature/sum", "base": "main"}


@pytest.mark.parametrize("gets", [0, 3])
async def test_mergeable_is_null_as_often_as_a_test_says(api: Api, shop: Repository, github: GitHub, gets: int) -> None:
    """`mergeable` is null for the scripted number of gets, also after a push, which starts the computation again."""
    github.unknown_gets = gets
    await api("POST", PULLS, NEW)

    async def shown() -> list[Any]:
        return [(await api("GET", f"{PULLS}/1")).json["mergeable"] for _ in range(gets + 1)]

    assert await shown() == [None] * gets + [True]
    shop.git.commit("feature/sum", {"sum.py": "total = 2\n"})
    assert await shown() == [None] * gets + [True]


async def test_pulls_do_not_see_a_new_branch(api: Api, shop: Repository) -> None:
    """They get 422 as often as scripted, while git and the refs have the branch; and again after a push."""
    shop.unseen = 2
    assert [(await api("POST", PULLS, NEW)).status for _ in range(3)] == [422, 422, 201]
    assert (await api("GET", "/repos/team/shop/branches/feature/sum")).status == 200
    await api("PATCH", f"{PULLS}/1", {"state": "closed"})
    shop.git.commit("feature/sum", {"sum.py": "total = 2\n"})
    refused = await api("POST", PULLS, NEW)
    assert (refused.status, refused.json["errors"][0]["field"]) == (422, "head")


@pytest.mark.parametrize("text", github_faults.REFUSED_MERGES)
async def test_each_text_of_a_refused_merge(api: Api, opened: dict[str, Any], github: GitHub, text: str) -> None:
    """A merge gets 405 with this text, once; the next merge succeeds."""
    github.refuse("pulls/merge", github_faults.refused_merge(text))
    refused = await api("PUT", f"{PULLS}/1/merge", {"sha": opened["head"]["sha"]})
    assert (refused.status, refused.json["message"]) == (405, text)
    assert (await api("PUT", f"{PULLS}/1/merge", {"sha": opened["head"]["sha"]})).status == 200


@pytest.mark.parametrize("status", [403, 429])
async def test_secondary_limit(api: Api, shop: Repository, github: GitHub, status: int) -> None:
    """The response is 403 or 429 with `retry-after`, and the request has no effect."""
    github.refuse("pulls/create", github_faults.secondary_limit(30, status))
    refused = await api("POST", PULLS, NEW)
    assert (refused.status, refused.headers["retry-after"]) == (status, "30")
    assert "secondary rate limit" in refused.json["message"]
    assert int(refused.headers["x-ratelimit-remaining"]) > 0
    assert shop.pulls == {}


async def test_primary_limit_ends_with_the_hour(api: Api, shop: Repository, github: GitHub, clock: Clock) -> None:
    """The response is 403 with `x-ratelimit-remaining: 0` until `x-ratelimit-reset`; /rate_limit does not count."""
    github.limit = 2
    assert [(await api("GET", PULLS)).status for _ in range(3)] == [200, 200, 403]
    refused = await api("GET", PULLS)
    assert refused.headers["x-ratelimit-remaining"] == "0"
    assert "retry-after" not in refused.headers
    shown = await api("GET", "/rate_limit")
    assert (shown.status, shown.json["rate"]["remaining"]) == (200, 0)
    clock.advance(int(refused.headers["x-ratelimit-reset"]) - clock.now().timestamp() + 1)
    assert (await api("GET", PULLS)).status == 200


async def test_unchanged_list_is_304_and_free(api: Api, shop: Repository, github: GitHub) -> None:
    """With the ETag of the last response, a list is 304 until something changes, and does not count."""
    first = await api("GET", PULLS)
    again = await api("GET", PULLS, If_None_Match=first.headers["etag"])
    assert (again.status, again.text) == (304, "")
    assert again.headers["x-ratelimit-remaining"] == first.headers["x-ratelimit-remaining"]
    await api("POST", PULLS, NEW)
    assert (await api("GET", PULLS, If_None_Match=first.headers["etag"])).status == 200


async def test_lost_response_has_taken_effect(api: Api, shop: Repository, github: GitHub) -> None:
    """The connection is closed, and the pull request exists."""
    github.lose("pulls/create")
    with pytest.raises(aiohttp.ClientError):
        await api("POST", PULLS, NEW)
    assert list(shop.pulls) == [1]


async def test_dropped_request_has_no_effect(api: Api, shop: Repository, github: GitHub) -> None:
    """The connection is closed, and there is no pull request."""
    github.break_off("pulls/create", Way.DROPPED)
    with pytest.raises(aiohttp.ClientError):
        await api("POST", PULLS, NEW)
    assert shop.pulls == {}


async def test_body_that_is_cut_off(api: Api, shop: Repository, github: GitHub) -> None:
    """Half of the body is sent, then the connection is closed."""
    github.break_off("pulls/create", Way.CUT)
    with pytest.raises(aiohttp.ClientError):
        await api("POST", PULLS, NEW)
    assert list(shop.pulls) == [1]


@pytest.mark.parametrize(("way", "done"), [(Way.SLOW, [1]), (Way.DELAYED, [])])
async def test_slow_response_waits_for_the_test(
    api: Api, shop: Repository, github: GitHub, way: Way, done: list[int]
) -> None:
    """No response is complete until the test releases it; the request takes effect before (slow) or after (delayed)."""
    fault = github.break_off("pulls/create", way)
    sent = asyncio.create_task(api("POST", PULLS, NEW))
    await fault.reached.wait()
    await api("GET", "/repos/team/shop")  # a whole response without the fault comes first
    assert (sent.done(), list(shop.pulls)) == (False, done)
    fault.released.set()
    assert (await sent).status == 201


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_server_errors(api: Api, shop: Repository, github: GitHub, status: int) -> None:
    """They occur as often as scripted, after the scripted number of other requests."""
    github.refuse("pulls/list", Reply(status, {"message": "Server Error"}), times=2, skip=1)
    assert [(await api("GET", PULLS)).status for _ in range(3)] == [200, status, status]
    assert github.faults.unused() == []
    assert (await api("GET", PULLS)).status == 200


async def test_page_instead_of_json(api: Api, shop: Repository, github: GitHub) -> None:
    """The response is HTML, also with status 200."""
    github.refuse("pulls/list", html(200))
    page = await api("GET", PULLS)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.text.startswith("<!DOCTYPE html>")


async def test_scripted_limit_and_refused_token(api: Api, shop: Repository, github: GitHub) -> None:
    """The primary limit is 429 with the time of its end; a token that was valid gets 401."""
    github.refuse("pulls/create", github_faults.primary_limit(4_000_000_000, 429))
    github.refuse("pulls/create", github_faults.bad_credentials())
    limited = await api("POST", PULLS, NEW)
    found = [limited.headers[f"x-ratelimit-{name}"] for name in ("remaining", "reset")]
    assert (limited.status, found, "retry-after" in limited.headers) == (429, ["0", "4000000000"], False)
    assert (await api("POST", PULLS, NEW)).status == 401
    assert (await api("POST", PULLS, NEW)).status == 201


async def test_replaced_response_has_taken_effect(api: Api, shop: Repository, github: GitHub) -> None:
    """A proxy's error page is sent after the change was made."""
    github.faults.add(Fault("pulls/create", Way.REPLACED, html(502)))
    assert (await api("POST", PULLS, NEW)).status == 502
    assert list(shop.pulls) == [1]


async def test_huge_and_nested_bodies(api: Api, shop: Repository, github: GitHub) -> None:
    """A body has 8 MB, or JSON that is nested more deeply than Python's parser permits."""
    github.refuse("pulls/list", huge(8_000_000))
    assert len((await api("GET", PULLS)).text) == 8_000_000
    github.refuse("pulls/list", nested(200_000))
    with pytest.raises((RecursionError, ValueError)):
        await api("GET", PULLS)


async def test_scripted_conflict_of_a_moved_head(api: Api, opened: dict[str, Any], github: GitHub) -> None:
    """The response is 409 though the head did not move."""
    github.refuse("pulls/merge", github_faults.moved_head())
    assert (await api("PUT", f"{PULLS}/1/merge", {"sha": opened["head"]["sha"]})).status == 409


async def test_expired_token_in_the_middle(api: Api, shop: Repository, github: GitHub, clock: Clock) -> None:
    """An installation's token is valid for an hour of the test's clock, then gets 401."""
    token = github.installation_token(github.install_app())
    clock.advance(3599)
    assert (await api("GET", PULLS, token=token)).status == 200
    clock.advance(1)
    refused = await api("GET", PULLS, token=token)
    assert (refused.status, refused.json["message"]) == (401, "Bad credentials")


async def test_calls_are_counted_and_hasty_writes_found(
    api: Api, opened: dict[str, Any], github: GitHub, clock: Clock
) -> None:
    """Calls are counted by operation; two writes within a second of the clock are a pair, reads are not."""
    await api("GET", f"{PULLS}/1")
    clock.advance(1)
    await api("PATCH", f"{PULLS}/1", {"title": "Sums"})
    assert github.calls.hasty_writes() == []
    await api("PATCH", f"{PULLS}/1", {"title": "All sums"})
    ((first, second),) = github.calls.hasty_writes()
    assert (first.body, second.body) == ({"title": "Sums"}, {"title": "All sums"})
    assert github.calls.by_operation() == {"pulls/create": 1, "pulls/get": 1, "pulls/update": 2}
    assert github.calls.number() == 4
