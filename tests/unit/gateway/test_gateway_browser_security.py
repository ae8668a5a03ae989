"""A browser can do nothing for another site's page, with a foreign cookie, or with a credential of another kind."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.datastructures import Headers

from gateway.access_tokens import AccessError, PresentedCredential, caller_of, credential_of, new_credential_text
from gateway.browser_security import COOKIE, check_origin, deleting_cookie, request_credential, session_cookie
from gateway.request_guard import RequestGuard
from sandherd.contracts.records import SharedAccessToken, TokenKind

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SESSION = new_credential_text("session", "p1")
TOKEN = new_credential_text("token", "p2")


def headers(**values: str) -> Headers:
    return Headers({name.replace("_", "-"): value for name, value in values.items()})


@pytest.mark.parametrize(
    ("sent", "permitted"),
    [
        ({}, True),
        ({"sec_fetch_site": "same-origin", "origin": "https://evil.example"}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "http://herd.example"}, False),
        ({"sec_fetch_site": ""}, False),
        ({"origin": "https://Herd.example"}, True),
        ({"origin": "http://herd.example:8080"}, False),
        ({"origin": "https://herd.example.evil.example"}, False),
        ({"origin": "null"}, False),
    ],
)
def test_requests_of_other_sites_pages_are_refused(sent: dict[str, str], *, permitted: bool) -> None:
    """The origin is in `Sec-Fetch-Site`, which no page can set, or else in `Origin`; programs send neither."""
    if permitted:
        check_origin(headers(host="herd.example", **sent))
        return
    with pytest.raises(AccessError) as refused:
        check_origin(headers(host="herd.example", **sent))
    assert refused.value.status == 403


def test_header_and_cookie_are_not_mixed() -> None:
    """A header is used alone, even if it is invalid. A text is valid as its own kind only. Two cookies are refused."""
    cookie = f"theme=dark; {COOKIE}={SESSION}"
    assert request_credential(headers(cookie=cookie)) == credential_of("session", SESSION)
    both = headers(cookie=cookie, authorization=f"Bearer {TOKEN}")
    assert (request_credential(both).kind, request_credential(both).project) == ("token", "p2")
    wrong: list[dict[str, str]] = [
        {"cookie": cookie, "authorization": "Bearer x"},
        {"cookie": cookie, "authorization": ""},
        {"cookie": f"{COOKIE}={TOKEN}"},
        {"cookie": f"{COOKIE.lower()}={SESSION}"},
        {"authorization": f"Bearer {SESSION}"},
        {},
    ]
    for sent in wrong:
        with pytest.raises(AccessError) as refused:
            request_credential(headers(**sent))
        assert refused.value.status == 401
    tossed = Headers(
        raw=[(b"cookie", cookie.encode()), (b"cookie", f"{COOKIE}={new_credential_text('session', 'p1')}".encode())]
    )
    with pytest.raises(AccessError) as refused:
        request_credential(tossed)
    assert refused.value.status == 400


def test_record_is_valid_for_its_own_kind_only() -> None:
    """The record of a code does not authenticate a session, whichever hash a request has."""
    kinds: tuple[TokenKind, ...] = ("token", "session", "code")
    for kind in kinds:
        record = SharedAccessToken(
            project="p1", token="x", role="read", expires_at=NOW + timedelta(seconds=1), kind=kind, user="ada"
        )
        assert caller_of(record, PresentedCredential(kind, "p1", "d"), NOW).name == "ada"
        for other in set(kinds) - {kind}:
            with pytest.raises(AccessError):
                caller_of(record, PresentedCredential(other, "p1", "d"), NOW)


def test_cookie_is_for_this_host_and_no_script() -> None:
    """Browsers refuse the prefix `__Host-` without these attributes."""
    for line in (session_cookie(SESSION, 60), deleting_cookie()):
        name, *attributes = line.split("; ")
        assert name.startswith("__Host-sandherd=")
        assert {"Path=/", "Secure", "HttpOnly", "SameSite=Lax"} <= set(attributes)
        assert not any(one.startswith("Domain") for one in attributes)
    assert "Max-Age=0" in deleting_cookie()


async def test_pages_are_public_and_have_a_strict_policy() -> None:
    """Only paths below /api/ need a credential, and no spelling of such a path avoids it."""
    got: dict[str, Any] = {}

    async def inner(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-inner", scope["path"].encode())]})

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            got.update(status=message["status"], headers=dict(message["headers"]))

    guard = RequestGuard(inner, Any, hosts=frozenset(), per_second=9, on_response=lambda _status, _seconds: None)  # type: ignore[arg-type]  # not used
    for path in ("/", "/sandboxes/sbx-1", "/sign-in", "/API/v1/tasks"):
        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", b"localhost")]}
        await guard(scope, receive, send)
        policy = got["headers"][b"content-security-policy"].decode()
        assert got["status"] == 200
        assert "script-src 'self'; style-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert got["headers"][b"cross-origin-opener-policy"] == b"same-origin"
    for path in ("/api/v1/tasks", "/api/", "/api/../sign-in", "/api/v1/session"):
        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", b"localhost")]}
        await guard(scope, receive, send)
        assert (got["status"], b"x-inner" in got["headers"]) == (401, False)
