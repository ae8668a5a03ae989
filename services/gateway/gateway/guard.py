"""What every request passes before a route handles it: host, credential, origin, rate, and the size of its body."""

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response

from gateway.access import AccessError, Caller, TokenReader
from gateway.browsers import API_HEADERS, PAGE_HEADERS, STRICT_TRANSPORT, check_origin, presented
from gateway.pages import Pages, is_page
from gateway.problems import problem_of, problem_response
from sandherd.bus.rate_limit import RateLimiter, rate_of
from sandherd.contracts.errors import Code, Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CALLER: Final = "sandherd.caller"
"""The key of a request's caller in its ASGI scope."""
CONTENT: Final = "sandherd.content"
"""The key of the SHA-256 hash of a request's body in its ASGI scope."""
MAX_BODY: Final = 512 * 1024
"""Maximum size of a request's body in bytes: a command may have half of that."""
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?")
_BURST_SECONDS: Final = 2.0
_SMALL_BODY: Final = 4 * 1024
"""The same without a credential."""
_PUBLIC: Final = frozenset(
    {
        ("POST", "/api/v1/session"),
        ("GET", "/api/v1/sign-in"),
        ("GET", "/api/v1/sign-in/oidc"),
        ("GET", "/api/v1/sign-in/oidc/callback"),
    }
)
"""Requests to the API that need no credential. The two of OpenID are navigations, which another site may begin."""


class Guard:
    """An ASGI application around the routes. The API is shown to no request without a credential; pages are."""

    def __init__(
        self,
        inner: Application,
        tokens: Callable[[], TokenReader],
        *,
        hosts: frozenset[str],
        secure: bool = False,
        per_second: float,
        measured: Callable[[int, float], None],
    ) -> None:
        """`secure`: browsers use the gateway by https only. `measured` gets status and seconds of each response."""
        self._inner = inner
        self._tokens = tokens
        self._hosts = _LOOPBACK | {host.lower() for host in hosts}
        self._pages = Pages()
        self._rates = RateLimiter(rate_of(per_second, _BURST_SECONDS))
        self._measured = measured
        self._transport = [STRICT_TRANSPORT] if secure else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        begun = time.monotonic()
        own = PAGE_HEADERS if is_page(scope["path"]) else API_HEADERS

        async def hardened(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *own, *self._transport]
                self._measured(message["status"], time.monotonic() - begun)
            await send(message)

        refusal, body = await self._examined(scope, receive)
        if refusal is not None:
            await refusal(scope, receive, hardened)
            return
        await self._inner(scope, _replayed(body, receive), hardened)

    async def _examined(self, scope: Scope, receive: Receive) -> tuple[Response | None, bytes]:
        """The refusal of a request, if it is refused, and its body."""
        headers = Headers(scope=scope)
        if not is_known_host(headers.get("host", ""), self._hosts):
            text = "this host is not one of the gateway's names"
            remedy = "add it to SANDHERD_GATEWAY_HOSTS if it is"
            return problem_response(problem_of(Code.REFUSED, text, field="Host", remedy=remedy), 421), b""
        if scope["path"] == "/healthz":
            return Response("ok\n", media_type="text/plain"), b""
        if is_page(scope["path"]):
            return self._pages.response(scope["method"], scope["path"], headers), b""
        try:
            caller = await self._authenticated(scope, headers)
        except AccessError as error:
            more = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
            return problem_response(error.problem, error.status, more), b""
        excess = 0.0 if caller is None else self._rates.excess(caller.digest, time.monotonic())
        if excess:
            return problem_response(too_often(excess), 429), b""
        limit = _SMALL_BODY if caller is None else MAX_BODY
        refusal, body = await _content(headers.get("content-length", ""), receive, limit)
        scope[CONTENT] = hashlib.sha256(body).hexdigest()
        return refusal, body

    async def _authenticated(self, scope: Scope, headers: Headers) -> Caller | None:
        """The caller, who is in the scope then; None for a public request. Raises `AccessError`."""
        if (scope["method"], scope["path"]) in _PUBLIC:
            if scope["method"] != "GET":
                check_origin(headers)
            return None
        credential = presented(headers)
        if credential.kind == "session":
            check_origin(headers)
        caller = await self._tokens().authenticate(credential)
        scope[CALLER] = caller
        return caller


def is_known_host(header: str, hosts: frozenset[str]) -> bool:
    """Whether a header `Host` names the gateway; the port is not compared: a proxy may have another one."""
    form = _HOST.fullmatch(header.lower())
    return form is not None and form[1] in hosts


def hosts_of(url: str | None) -> frozenset[str]:
    """The host in the gateway's own address."""
    return frozenset({host} if url and (host := urlsplit(url).hostname) else ())


def caller_in(scope: Scope) -> Caller:
    """The caller of a request that has passed the guard."""
    caller: Caller = scope[CALLER]
    return caller


def too_often(excess: float) -> Problem:
    """The refusal of a request that comes `excess` seconds too early."""
    text = "there are too many requests with this token"
    return Problem(
        code=Code.BUSY, message=text, remedy="retry after the time in Retry-After", retry_after_seconds=excess
    )


async def _content(length: str, receive: Receive, limit: int) -> tuple[Response | None, bytes]:
    """The refusal of a body, if it is refused, and the body."""
    try:
        body = await _read(length, receive, limit)
    except EOFError:
        text = "the connection ended within the body"
        return problem_response(problem_of(Code.INVALID_JSON, text, remedy="send it again")), b""
    if body is None:
        text = f"the body has more than {limit} bytes"
        return problem_response(problem_of(Code.TOO_LARGE, text, remedy="make it smaller")), b""
    return None, body


async def _read(length: str, receive: Receive, limit: int) -> bytes | None:
    """The body of a request; None if it is too large. Raises `EOFError` if it is incomplete."""
    if length.isdigit() and int(length) > limit:
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise EOFError
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once, and then what the connection has: its end."""
    left = [body]

    async def replayed() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed
