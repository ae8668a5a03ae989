"""The double of GitHub against the published document: a wrong response or request fails the test that made it."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.doubles.forges import github as served
from tests.doubles.forges.calls import Call
from tests.doubles.forges.documents import excerpt
from tests.doubles.forges.forge import ViolationError
from tests.doubles.forges.forge_state import Repository
from tests.doubles.forges.github import GitHub, document
from tests.doubles.forges.github_pull_shapes import PullShapes
from tests.doubles.forges.replies import Reply
from tests.integration.doubles.conftest import Api


def _without(name: str) -> Any:
    original = PullShapes.pull

    def changed(self: PullShapes, *about: Any) -> dict[str, Any]:
        return {key: value for key, value in original(self, *about).items() if key != name}

    return changed


def _with(**more: Any) -> Any:
    original = PullShapes.pull
    return lambda self, *about: {**original(self, *about), **more}


@pytest.fixture
async def lenient(github: GitHub) -> AsyncIterator[GitHub]:
    """GitHub whose violations the test reads, so that they do not fail it."""
    yield github
    github.violations.clear()
    github.invalid_requests.clear()


def _found(github: GitHub) -> str:
    """The errors with which the test would fail."""
    with pytest.raises(ViolationError) as raised:
        github.verify()
    return str(raised.value)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (_without("html_url"), "'html_url' is a required property"),
        (_with(number="1"), "'1' is not of type 'integer'"),
        (_with(state=None), "$.state"),
        (_with(created_at="yesterday"), "'yesterday' is not a 'date-time'"),
        (_with(mergable=True), "'mergable' was unexpected"),
        (_with(user={"login": "ada"}), "$.user"),
    ],
)
async def test_wrong_response_fails_the_test(
    monkeypatch: pytest.MonkeyPatch, api: Api, lenient: GitHub, shop: Repository, changed: Any, text: str
) -> None:
    """A field that is missing, unknown, or of another type or format leads to 500, and an error that names it."""
    monkeypatch.setattr(PullShapes, "pull", changed)
    new = {"title": "Sum", "head": "feature/sum", "base": "main"}
    assert (await api("POST", "/repos/team/shop/pulls", new)).status == 500
    assert text in _found(lenient)


async def test_closing_raises_what_was_found() -> None:
    """A test need not check: it fails when GitHub is closed, and with its own error if it has one."""

    async def use(error: Exception | None = None) -> None:
        async with GitHub() as github:
            github.violations.append("a wrong response")
            if error:
                raise error

    with pytest.raises(ViolationError, match="a wrong response"):
        await use()
    with pytest.raises(KeyError):
        await use(KeyError())


async def test_undocumented_status_fails_the_test(lenient: GitHub) -> None:
    """A status that the document lacks for the operation is a violation."""
    call = Call("GET", "/repos/team/shop/pulls", "pulls/list", lenient.clock.now())
    lenient.check_reply(call, Reply(418, {"message": "I am a teapot"}))
    assert "418 is not documented for pulls/list" in _found(lenient)


async def test_crash_of_the_double_fails_the_test(
    monkeypatch: pytest.MonkeyPatch, api: Api, lenient: GitHub, shop: Repository
) -> None:
    """An exception in a route also fails the test, and is not only a 500 for the client."""
    monkeypatch.setattr(PullShapes, "full_repository", lambda *_: 1 / 0)
    assert (await api("GET", "/repos/team/shop")).status == 500
    assert "ZeroDivisionError" in _found(lenient)


@pytest.mark.parametrize(
    ("method", "path", "sent", "text"),
    [
        ("POST", "/repos/team/shop/pulls", {"title": "x", "base": "main"}, "'head' is a required property"),
        ("POST", "/repos/team/shop/pulls", {"title": 1, "head": "a", "base": "main"}, "1 is not of type 'string'"),
        ("POST", "/repos/team/shop/git/refs", ["refs/heads/a"], "is not of type 'object'"),
        ("PUT", "/repos/team/shop/pulls/1/merge", {"merge_method": "octopus"}, "'octopus' is not one of"),
        ("GET", "/repos/team/shop/pulls?state=merged", None, "'merged' is no value"),
    ],
)
async def test_invalid_request_is_422_and_fails_the_test(
    api: Api, lenient: GitHub, shop: Repository, method: str, path: str, sent: Any, text: str
) -> None:
    """The client gets GitHub's refusal, and the test's author an error."""
    refused = await api(method, path, sent)
    assert refused.status == 422
    assert refused.json["message"].startswith("Invalid request.\n\n")
    assert text in _found(lenient)


async def test_invalid_path_is_404_and_fails_the_test(api: Api, lenient: GitHub, shop: Repository) -> None:
    """A path parameter that is not a number gets 404."""
    assert (await api("GET", "/repos/team/shop/pulls/one")).status == 404
    assert "'one' is no value" in _found(lenient)


async def test_invalid_request_on_purpose(api: Api, github: GitHub, shop: Repository) -> None:
    """A test that sends an invalid request on purpose declares it."""
    github.permits_invalid_requests = True
    assert (await api("POST", "/repos/team/shop/pulls", {})).status == 422


@pytest.mark.parametrize(
    ("method", "path", "sent", "text"),
    [
        ("GET", "/repos/team/shop/pulls?sate=all", None, "sate: is no parameter"),
        ("POST", "/repos/team/shop/issues/1/comments", {"body": "x", "test": "x"}, "'test' was unexpected"),
    ],
)
async def test_unknown_names_fail_the_test(
    api: Api, lenient: GitHub, shop: Repository, method: str, path: str, sent: Any, text: str
) -> None:
    """GitHub ignores an unknown parameter or field; here it is found as a client's spelling mistake."""
    lenient.open_issue(shop, "Sums are wrong")
    assert (await api(method, path, sent)).status in {200, 201}
    assert text in _found(lenient)


async def test_operation_that_is_not_served_fails_the_test(api: Api, lenient: GitHub, shop: Repository) -> None:
    """The client gets 404, and the test an error that names the operation."""
    assert (await api("GET", "/repos/team/shop/stargazers")).status == 404
    assert "GET /repos/team/shop/stargazers is not served" in _found(lenient)


async def test_versions(api: Api, opened: dict[str, Any], lenient: GitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version has its document: 2026-03-10 lacks fields of older clients, and sending one is a violation."""
    assert {"merge_commit_sha", "assignee"} <= set(opened)
    new = {"X_GitHub_Api_Version": "2026-03-10"}
    for path in ("/repos/team/shop/pulls/1", "/repos/team/shop", "/rate_limit", "/repos/team/shop/issues/1"):
        shown = await api("GET", path, **new)
        assert shown.status == 200, lenient.violations
        assert not {"merge_commit_sha", "assignee", "rate", "has_downloads"} & set(shown.json)
    assert (await api("GET", "/rate_limit", X_GitHub_Api_Version="2020-01-01")).status == 400
    lenient.verify()
    monkeypatch.setattr(served, "without", lambda body, _names: body)
    assert (await api("GET", "/repos/team/shop/pulls/1", **new)).status == 500
    assert "merge_commit_sha" in _found(lenient)


async def test_body_that_is_no_json_is_400(github: GitHub, shop: Repository) -> None:
    """The response is 400 with GitHub's text."""
    headers = {"Authorization": f"Bearer {github.person_token()}"}
    url = f"{github.api_url}/repos/team/shop/pulls"
    async with aiohttp.request("POST", url, data=b"{", headers=headers) as response:
        assert (response.status, (await response.json())["message"]) == (400, "Problems parsing JSON")


def test_excerpt_has_what_it_refers_to() -> None:
    """An excerpt is a complete document; an operation that the document lacks is an error."""
    whole = {
        "openapi": "3.0.3",
        "info": {"title": "t", "version": "1"},
        "paths": {
            "/a": {"get": {"operationId": "a", "x": {"$ref": "#/components/schemas/a"}}, "put": {"operationId": "b"}}
        },
        "components": {"schemas": {"a": {"items": {"$ref": "#/components/schemas/c"}, "example": 1}, "b": {}, "c": {}}},
    }
    part = excerpt(whole, ["a"])
    assert list(part["paths"]["/a"]) == ["get"]
    assert part["components"]["schemas"] == {"a": {"items": {"$ref": "#/components/schemas/c"}}, "c": {}}
    with pytest.raises(KeyError, match="missing"):
        excerpt(whole, ["missing"])


def test_longest_template_is_found_first() -> None:
    """A ref may contain slashes, so that templates overlap; the longest is used."""
    paths = {
        "/repos/a/b/commits/feature/sum/check-runs": "checks/list-for-ref",
        "/repos/a/b/commits/feature/sum": "repos/get-commit",
        "/repos/a/b/git/refs/heads/feature/sum": None,
        "/repos/a/b/branches/x/y/protection": "repos/get-branch-protection",
    }
    found = {path: document().find("GET", path) for path in paths}
    assert {path: one[0].id if one else None for path, one in found.items()} == paths
