"""GitHub: its REST API, checked against the published OpenAPI document, and git over HTTP, of the same repositories.

The API is at `api_url` (`/api/v3`, as on GitHub Enterprise Server; GraphQL is at `api_url/graphql`), and git at
`url/OWNER/NAME.git`. `GitHubSetup` has what a test changes, `Forge` how it scripts faults and counts requests.
"""

import json
import secrets
from collections.abc import Mapping
from email.utils import format_datetime
from functools import cache
from typing import Any, ClassVar, Final

from aiohttp import web

from tests.doubles.forges import github_apps, github_graphql, github_issues, github_pulls, github_refs, github_reviews
from tests.doubles.forges.calls import Call
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.documents import published_document
from tests.doubles.forges.github_access import Access
from tests.doubles.forges.github_exchange import Exchange, Route
from tests.doubles.forges.github_pull_shapes import error
from tests.doubles.forges.github_setup import GitHubSetup
from tests.doubles.forges.github_versions import changed, removed_names, without
from tests.doubles.forges.openapi import Document, Mismatch
from tests.doubles.forges.replies import ABSENT, Reply

_ROUTES: Final[dict[str, Route]] = {
    **github_refs.ROUTES, **github_pulls.ROUTES, **github_reviews.ROUTES, **github_issues.ROUTES,
    **github_apps.ROUTES,
}  # fmt: skip
VERSIONS: Final = ("2022-11-28", "2026-03-10")
"""The versions of the API; the first one is served without the header."""
_HOUR: Final = 3600
_GRAPHQL: Final = "/graphql"


@cache
def document(version: str = VERSIONS[0]) -> Document:
    """GitHub's document of the operations that are served here, in a version of the API."""
    published = published_document("github", list(_ROUTES))
    return Document(changed(published, version) if version != VERSIONS[0] else published)


@cache
def _removed(version: str) -> frozenset[str]:
    """The names that a version has removed."""
    return removed_names(published_document("github", list(_ROUTES)), version)


def _version(call: Call) -> str:
    """The requested version; the oldest one if it is unknown."""
    version = call.headers.get("x-github-api-version", VERSIONS[0])
    return version if version in VERSIONS else VERSIONS[0]


class GitHub(GitHubSetup):
    """GitHub with the organization `team`; `async with` it. Repositories are private."""

    prefix: ClassVar[str] = "/api/v3"
    error_schema: ClassVar[dict[str, Any] | None] = {"$ref": "urn:forge#/components/schemas/basic-error"}

    def __init__(self, clock: Clock | None = None, *, unknown_gets: int = 1, update_gets: int = 1) -> None:
        super().__init__(clock, unknown_gets=unknown_gets, update_gets=update_gets)
        self.access = Access(self)

    def admit(self, request: web.Request, password: str | None) -> Mapping[str, str]:
        """Admit a request of git by the same tokens as the API's."""
        return self.access.of_git(request, password)

    def document_for(self, call: Call) -> Document:
        """The document of the version in `X-GitHub-Api-Version`."""
        return document(_version(call))

    def recognize(self, call: Call) -> None:
        """Find the operation in the document; a GraphQL request has that of its first field."""
        if call.path != _GRAPHQL:
            super().recognize(call)
        elif call.method == "POST":
            call.operation = github_graphql.operation_of(_parsed(call.raw))

    def check_reply(self, call: Call, reply: Reply) -> Reply:
        """Compare a response with the document; GraphQL checks its responses by its schema."""
        if call.path == _GRAPHQL:
            return reply
        reply.body = without(reply.body, _removed(_version(call)))
        return super().check_reply(call, reply)

    def refuse_request(self, path: list[Mismatch], others: list[Mismatch]) -> None:
        """Refuse with 404 if a path parameter is not a number, else with 422."""
        if path:
            raise error(404, "Not Found")
        if others:
            raise error(422, "Invalid request.\n\n" + "\n".join(one.message for one in others))

    async def answer(self, call: Call) -> Reply:
        """Call the route of the operation, after all checks."""
        if not call.operation:
            raise error(404, "Not Found")
        if (version := call.headers.get("x-github-api-version", VERSIONS[0])) not in VERSIONS:
            raise error(400, f"Unsupported API version: {version}")
        token = self.access.of_request(call)
        self.access.check_limit(call)
        call.body = _parsed(call.raw)
        if call.path == _GRAPHQL:
            for each in self.repositories.values():
                self.refresh(each)
            assert token is not None
            return github_graphql.respond(self, token, call.body)
        route = _ROUTES[call.operation]
        repository = self.access.repository(call, token)
        self.access.check_permission(call, token, repository, route)
        self.check_request(call)
        if repository:
            self.refresh(repository)
        return route.respond(Exchange(self, call, token, repository))

    def add_headers(self, call: Call, reply: Reply) -> None:
        """Add the time and the limits."""
        limits = self.limits(call.principal)
        rate_headers = {f"x-ratelimit-{name}": str(limits[name]) for name in ("limit", "remaining", "reset", "used")}
        own = {name.lower() for name in reply.headers}
        defaults = {
            **rate_headers,
            "x-ratelimit-resource": "core",
            "date": format_datetime(self.clock.now(), usegmt=True),
            "x-github-media-type": "github.v3; format=json",
            "x-github-request-id": secrets.token_hex(8).upper(),
        }
        reply.headers |= {name: text for name, text in defaults.items() if name not in own}

    def used(self, principal: str) -> int:
        """How many requests of this hour count towards the primary limit of a principal."""
        now = self.clock.now().timestamp()
        mine = [one for one in self.calls if one.principal == principal and one.at.timestamp() >= now - now % _HOUR]
        return sum(one.operation != "rate-limit/get" and one.status not in {304, 401} for one in mine)

    def limits(self, principal: str) -> dict[str, int]:
        """The primary limit of a principal in this hour."""
        now, used = self.clock.now().timestamp(), min(self.limit, self.used(principal))
        return {
            "limit": self.limit,
            "used": used,
            "remaining": self.limit - used,
            "reset": int(now - now % _HOUR + _HOUR),
        }


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else ABSENT
    except ValueError as problem:
        raise error(400, "Problems parsing JSON") from problem
