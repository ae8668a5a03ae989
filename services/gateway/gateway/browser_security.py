"""Security of browsers: the session's cookie, the origin of requests, and the headers of responses. Pure.

A browser sends a cookie automatically, even if a page of another site causes the request. So a request that is
authenticated by the cookie has to come from a page of the gateway (`check_origin`). The header `Authorization` is never
sent automatically.
"""

from typing import Final

from starlette.datastructures import Headers

from gateway.access_tokens import AccessError, PresentedCredential, credential_of, unauthorized_error
from gateway.problems import problem_of
from sandherd.contracts.errors import Code

COOKIE: Final = "__Host-sandherd"
"""The cookie with a session's text. Because of its prefix `__Host-`, browsers accept it from this host only, and for
all paths."""
_COOKIE_ATTRIBUTES: Final = "Path=/; Secure; HttpOnly; SameSite=Lax"
_PERMITTED_SITES: Final = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` that are permitted. `none` means that the user caused the request, not a page."""
_COMMON_HEADERS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
API_HEADERS: Final = [
    *_COMMON_HEADERS,
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""Headers of every response of the API."""
PAGE_HEADERS: Final = [
    *_COMMON_HEADERS,
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
            b"font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
        ),
    ),
]
"""Headers of pages and their files. Scripts and styles may be in files only."""
STRICT_TRANSPORT: Final = (b"strict-transport-security", b"max-age=31536000")
"""The header that makes browsers use only https from then on."""


def request_credential(headers: Headers) -> PresentedCredential:
    """The credential of a request: the token in `Authorization`, or else the session in its cookie.

    If a request has both, the cookie is ignored, even if the token is invalid. Raises `AccessError`.
    """
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, text = authorization.partition(" ")
        return credential_of("token", text.strip() if scheme.lower() == "bearer" else "")
    cookie = cookie_in(headers)
    if cookie is None:
        raise unauthorized_error("there is neither an access token in the header Authorization nor a session's cookie")
    return credential_of("session", cookie)


def cookie_in(headers: Headers, cookie_name: str = COOKIE) -> str | None:
    """The value of a cookie of a request.

    Raises `AccessError` if there are several, because another site may have set one.
    """
    pairs = [pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";")]
    values = [value for name, _, value in pairs if name == cookie_name]
    if len(values) > 1:
        text = f"there are {len(values)} cookies {cookie_name}"
        raise AccessError(problem_of(Code.REFUSED, text, field="Cookie", remedy="delete the cookies of this host"), 400)
    return values[0] if values else None


def check_origin(headers: Headers) -> None:
    """Raise `AccessError` if a browser sends this request for a page of another origin.

    Browsers state the origin in `Sec-Fetch-Site`; older browsers and WebSockets state it in `Origin`. Programs send
    neither.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_permitted = (
        site in _PERMITTED_SITES
        if site is not None
        else origin is None or _host_of(origin) == headers.get("host", "").lower()
    )
    if not is_permitted:
        text = "the request was caused by a page of another site"
        remedy = "open the gateway's own page, or send a token in the header Authorization"
        field = "Origin" if site is None else "Sec-Fetch-Site"
        raise AccessError(problem_of(Code.REFUSED, text, field=field, remedy=remedy), 403)


def session_cookie(text: str, seconds: int, name: str = COOKIE) -> str:
    """The value of the header `Set-Cookie` for a cookie with this text and lifetime."""
    return f"{name}={text}; Max-Age={seconds}; {_COOKIE_ATTRIBUTES}"


def deleting_cookie() -> str:
    """The value of the header `Set-Cookie` that deletes the session's cookie."""
    return session_cookie("", 0)


def _host_of(origin: str) -> str:
    return origin.lower().partition("://")[2]
