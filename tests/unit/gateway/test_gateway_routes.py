"""Every route needs the role in a table, and accepts no cookie in a request that another site's page causes."""

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import pytest

from gateway.access_tokens import Caller, PresentedCredential, new_credential_text
from gateway.application import application, document
from gateway.browser_security import COOKIE
from gateway.request_guard import RequestGuard
from sandherd.contracts.records import AccessRole

SIGN_IN: Final = {"sign_in", "sign_in_methods", "begin_oidc", "end_oidc"}
APPROVE: Final = {"decide_approval", "grant_budget", "merge_branch"}
OPERATE: Final = {"audit", "dead_letters", "dead_letter"}
READ: Final = {"sign_out", "post_event"}
"""Routes with an unsafe method that the role `read` permits: the end of its own session, and routes that only refuse.
"""
WORK: Final = {"runtime_log", "command_state"}
"""Routes that only read, but return what a command has written, so that they need the role `work`."""
LOWER: Final[dict[AccessRole, AccessRole]] = {"work": "read", "approve": "work", "operate": "approve"}
OTHER_SITES: Final[list[dict[str, str]]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "origin": "http://localhost"},
    {"sec-fetch-site": ""},
    {"origin": "null"},
    {"origin": "http://localhost:9"},
    {"origin": "https://evil.example"},
]


@cache
def routes() -> list[tuple[str, str, str]]:
    """The method, path and operation of each route.

    It is not a constant: each process of a run would make the document.
    """
    return sorted(
        (method.upper(), re.sub(r"\{\w+\}", "x", path), operation["operationId"])
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    )


def role_of(method: str, operation: str) -> AccessRole:
    """The role that a route needs: `read` to read and `work` to change, except for the named routes."""
    if operation in OPERATE:
        return "operate"
    if operation in APPROVE:
        return "approve"
    changes = method != "GET" and operation not in READ
    return "work" if changes or operation in WORK else "read"


class Tokens:
    """A reader of tokens for which every credential is valid and has the same role."""

    def __init__(self, role: AccessRole) -> None:
        self.role = role

    async def authenticate(self, credential: PresentedCredential) -> Caller:
        """The caller with this credential."""
        end = datetime.now(UTC) + timedelta(hours=1)
        return Caller("p1", "t", self.role, "d", end, kind=credential.kind)


async def status_of(guard: RequestGuard, method: str, path: str, peer: str = "10.0.0.1", **headers: str) -> int:
    """The status of the response."""
    found: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    sent = [(b"host", b"localhost:8765"), *((name.encode(), value.encode()) for name, value in headers.items())]
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
             "root_path": "", "scheme": "http", "query_string": b"", "headers": sent, "client": (peer, 1),
             "server": ("localhost", 8765)}  # fmt: skip
    await guard(scope, receive, send)
    return found[0]


def guarded(inner: Any, role: AccessRole, per_second: float = 1e6) -> RequestGuard:
    """The guard around an application, without a broker."""
    tokens: Any = Tokens(role)
    return RequestGuard(
        inner, lambda: tokens, hosts=frozenset(), per_second=per_second, on_response=lambda _status, _time: None
    )


async def test_each_route_needs_its_role() -> None:
    """A lower role is refused by every route before it reads anything, and no route is missing from the table."""
    backend: Any = SimpleNamespace()
    app = application(lambda: backend)
    headers = {"authorization": f"Bearer {new_credential_text('token', 'p1')}"}
    checked = 0
    for method, path, operation in routes():
        if operation in SIGN_IN or (lower := LOWER.get(role_of(method, operation))) is None:
            continue
        assert await status_of(guarded(app, lower), method, path, **headers) == 403, operation
        checked += 1
    assert checked > 30


async def test_no_route_takes_the_cookie_of_another_sites_request() -> None:
    """This applies to every method, and to the sign-in. The gateway's own page is accepted, from the same port only."""
    reached: list[str] = []

    async def inner(scope: Any, _receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = guarded(inner, "operate")
    cookie = {"cookie": f"{COOKIE}={new_credential_text('session', 'p1')}"}
    for method, path, operation in routes():
        if operation in SIGN_IN and method == "GET":
            continue  # navigations, which use no session
        for site in OTHER_SITES:
            assert await status_of(guard, method, path, **cookie, **site) == 403, (operation, site)
    assert reached == []
    for own in ({"sec-fetch-site": "same-origin"}, {"origin": "http://localhost:8765"}, {}):
        assert await status_of(guard, "POST", "/api/v1/tasks", **cookie, **own) == 200


async def test_requests_without_a_credential_are_limited_by_address() -> None:
    """Requests without a credential are limited for each address, because a sign-in causes requests of the gateway."""

    async def inner(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = guarded(inner, "read", per_second=2.0)
    path = "/api/v1/sign-in/oidc/callback"
    found = [await status_of(guard, "GET", path) for _ in range(20)]
    assert (found[0], found[-1]) == (200, 429)
    assert await status_of(guard, "GET", path, peer="10.0.0.2") == 200


@pytest.mark.parametrize(
    "path",
    ["//api/v1/tasks", "/;/api/v1/tasks", "/./api/v1/tasks", "/webhooks/../api/v1/tasks", "http://x/api/v1/tasks", "*"],
)
async def test_no_spelling_of_a_path_reaches_a_route_past_the_guard(path: str) -> None:
    """A path that is not below `/api/` is a page or a webhook, and never a route of the API."""
    backend: Any = SimpleNamespace()
    guard = guarded(application(lambda: backend), "operate")
    assert await status_of(guard, "POST", path) in {404, 405}
