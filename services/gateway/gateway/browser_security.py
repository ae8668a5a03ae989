"""What concerns browsers: the session's cookie, the origin of requests, and the headers of responses. Pure.

A browser sends a cookie by itself, also when another site's page causes the request: what is authenticated by the
cookie has to come from a page of the gateway (`check_origin`). A header `Authorization` is only sent on purpose.
"""

from typing import Final

from starlette.datastructures import Headers

from gateway.access_tokens import AccessError, PresentedCredential, credential_of, unauthorized
from gateway.problems import problem_of
from sandherd.contracts.errors import Code

COOKIE: Final = "__Host-sandherd"
"""The cookie with a session's text. Of the prefix `__Host-`, browsers accept it from this host only, for all paths."""
_ATTRIBUTES: Final = "Path=/; Secure; HttpOnly; SameSite=Lax"
_SAME: Final = frozenset({"same-origin", "none"})
_ALWAYS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
API_HEADERS: Final = [
    *_ALWAYS,
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""Headers of every response of the API."""
PAGE_HEADERS: Final = [
    *_ALWAYS,
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
            b"font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
        ),
    ),
]
"""Headers of pages and their files. Scripts and styles are files only."""
STRICT_TRANSPORT: Final = (b"strict-transport-security", b"max-age=31536000")
"""The header by which browsers use https only from then on."""


def presented(headers: Headers) -> PresentedCredential:
    """What a request is to be authenticated by: a token in `Authorization`, else the session in its cookie.

    A request with both is one with a token: the cookie is not looked at, also if the token is invalid.
    Raises `AccessError`.
    """
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, text = authorization.partition(" ")
        return credential_of("token", text.strip() if scheme.lower() == "bearer" else "")
    cookie = cookie_in(headers)
    if cookie is None:
        raise unauthorized("there is neither an access token in the header Authorization nor a session's cookie")
    return credential_of("session", cookie)


def cookie_in(headers: Headers, wanted: str = COOKIE) -> str | None:
    """The value of a cookie of a request. Raises `AccessError` if there are several: one is not of here."""
    pairs = [pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";")]
    found = [value for name, _, value in pairs if name == wanted]
    if len(found) > 1:
        text = f"there are {len(found)} cookies {wanted}"
        raise AccessError(problem_of(Code.REFUSED, text, field="Cookie", remedy="delete the cookies of this host"), 400)
    return found[0] if found else None


def check_origin(headers: Headers) -> None:
    """Raise `AccessError` if a browser sends this request for a page of another origin.

    Browsers say it in `Sec-Fetch-Site`, older ones and WebSockets in `Origin`; programs send neither.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    same = site in _SAME if site is not None else origin is None or _place(origin) == headers.get("host", "").lower()
    if not same:
        text = "the request was caused by a page of another site"
        remedy = "open the gateway's own page, or send a token in the header Authorization"
        field = "Origin" if site is None else "Sec-Fetch-Site"
        raise AccessError(problem_of(Code.REFUSED, text, field=field, remedy=remedy), 403)


def session_cookie(text: str, seconds: int, name: str = COOKIE) -> str:
    """The header `Set-Cookie` for a session of this lifetime, or another value."""
    return f"{name}={text}; Max-Age={seconds}; {_ATTRIBUTES}"


def ended_cookie() -> str:
    """The header `Set-Cookie` that deletes it."""
    return session_cookie("", 0)


def _place(origin: str) -> str:
    return origin.lower().partition("://")[2]
