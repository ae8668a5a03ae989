"""Checks of every request before a route handles it: host, credential, origin, rate, and the size of its body."""

import hashlib
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response

from gateway.access_tokens import AccessError, Caller, TokenReader
from gateway.browser_security import (
    API_HEADERS,
    PAGE_HEADERS,
    STRICT_TRANSPORT,
    check_origin,
    cookie_in,
    request_credential,
)
from gateway.pages import StaticPages, is_page
from gateway.problems import problem_of, problem_response
from gateway.request_heads import LOOPBACK, refusal_of
from gateway.webhooks import MAX_WEBHOOK
from sandherd.bus.rate_limit import RateLimiter, rate_of
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.names import new_name

# The types of an ASGI application and its arguments.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST: Final = "sandherd.request"
"""The key of a request's id in its ASGI scope. The id is also in the response, and in the source of its commands."""
CALLER: Final = "sandherd.caller"
"""The key of a request's caller in its ASGI scope."""
CONTENT: Final = "sandherd.content"
"""The key of the SHA-256 hash of a request's body in its ASGI scope."""
MAX_BODY: Final = 512 * 1024
"""Maximum size of a request's body in bytes; a command may have half of that."""
_BURST_SECONDS: Final = 2.0
_WEBHOOKS: Final = "/webhooks/"
_MAX_READ_WEBHOOKS: Final = 16
"""Maximum number of webhooks that are read at the same time."""
_MAX_PUBLIC_BODY: Final = 4 * 1024
"""Maximum size in bytes of the body of a request without a credential."""
_PUBLIC: Final = frozenset(
    {
        ("POST", "/api/v1/session"),
        ("GET", "/api/v1/sign-in"),
        ("GET", "/api/v1/sign-in/oidc"),
        ("GET", "/api/v1/sign-in/oidc/callback"),
    }
)
"""Requests to the API that need no credential. Those of OpenID are navigations, which another site may cause."""


class RequestGuard:
    """An ASGI application around the routes. Requests to the API need a credential, requests for pages do not."""

    def __init__(
        self,
        inner: Application,
        tokens: Callable[[], TokenReader],
        *,
        hosts: frozenset[str],
        secure: bool = False,
        per_second: float,
        on_response: Callable[[int, float], None],
    ) -> None:
        """`secure` states that browsers use the gateway by https only.

        `on_response` is called with the status and the seconds of each response.
        """
        self._inner = inner
        self._tokens = tokens
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._pages = StaticPages()
        self._rates = RateLimiter(rate_of(per_second, _BURST_SECONDS))
        self._on_response = on_response
        self._webhooks_being_read = 0
        self._transport_headers = [STRICT_TRANSPORT] if secure else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        send_with_headers = self._with_security_headers(scope, send)
        if scope["type"] == "websocket":
            await (await self._socket_refusal(scope) or self._inner)(scope, receive, send_with_headers)
            return
        is_webhook = scope["method"] == "POST" and scope["path"].startswith(_WEBHOOKS)
        response, body = await (self._read_webhook if is_webhook else self._response_without_route)(scope, receive)
        if response is not None:
            await response(scope, receive, send_with_headers)
            return
        await self._inner(scope, _replay(body, receive), send_with_headers)

    def _with_security_headers(self, scope: Scope, send: Send) -> Send:
        """A `send` that adds the headers of every response, also to one that refuses a WebSocket."""
        began, request_id = time.monotonic(), new_name("req")
        scope[REQUEST] = request_id
        page_or_api_headers = PAGE_HEADERS if is_page(scope["path"]) else API_HEADERS
        security_headers = [*page_or_api_headers, *self._transport_headers, (b"x-request-id", request_id.encode())]

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] in {"http.response.start", "websocket.http.response.start"}:
                message["headers"] = [*message.get("headers", ()), *security_headers]
                self._on_response(message["status"], time.monotonic() - began)
            await send(message)

        return send_with_headers

    async def _response_without_route(self, scope: Scope, receive: Receive) -> tuple[Response | None, bytes]:
        """The response to a request that no route handles: a refusal, a page or the health check.

        For a request that a route has to handle, None and its body.
        """
        headers = Headers(scope=scope)
        if (refusal := refusal_of(headers, self._hosts)) is not None:
            return refusal, b""
        if scope["path"] == "/healthz":
            return Response("ok\n", media_type="text/plain"), b""
        if is_page(scope["path"]):
            return self._pages.response(scope["method"], scope["path"], headers), b""
        try:
            caller = await self._authenticate(scope, headers)
        except AccessError as error:
            challenge = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
            return problem_response(error.problem, error.status, challenge), b""
        # Requests without a credential are limited by address: a sign-in causes requests of the gateway itself.
        key = (scope.get("client") or ("",))[0] if caller is None else caller.digest
        excess = self._rates.excess(key, time.monotonic())
        if excess:
            return problem_response(rate_refusal(excess), 429), b""
        limit = _MAX_PUBLIC_BODY if caller is None else MAX_BODY
        refusal, body = await _checked_body(headers.get("content-length", ""), receive, limit)
        scope[CONTENT] = hashlib.sha256(body).hexdigest()
        return refusal, body

    async def _read_webhook(self, scope: Scope, receive: Receive) -> tuple[Response | None, bytes]:
        """The refusal of a webhook, or None and its body.

        Few webhooks are read at the same time, because a sender can't be authenticated before the body is read.
        """
        headers = Headers(scope=scope)
        if (refusal := refusal_of(headers, self._hosts)) is not None:
            return refusal, b""
        if self._webhooks_being_read >= _MAX_READ_WEBHOOKS:
            problem = problem_of(Code.BUSY, "other webhooks are being read", remedy="send it again")
            return problem_response(problem), b""
        self._webhooks_being_read += 1
        try:
            return await _checked_body(headers.get("content-length", ""), receive, MAX_WEBHOOK)
        finally:
            self._webhooks_being_read -= 1

    async def _socket_refusal(self, scope: Scope) -> Response | None:
        """The refusal of a WebSocket, or None. Without a credential, it may authenticate in its first message."""
        headers = Headers(scope=scope)
        if (refusal := refusal_of(headers, self._hosts)) is not None:
            return refusal
        try:
            check_origin(headers)
            if "authorization" not in headers and cookie_in(headers) is None:
                return None
            caller = scope[CALLER] = await self._tokens().authenticate(request_credential(headers))
        except AccessError as error:
            return problem_response(error.problem, error.status)
        excess = self._rates.excess(caller.digest, time.monotonic())
        return problem_response(rate_refusal(excess), 429) if excess else None

    async def _authenticate(self, scope: Scope, headers: Headers) -> Caller | None:
        """The caller, who is also stored in the scope; None for a public request. Raises `AccessError`."""
        if (scope["method"], scope["path"]) in _PUBLIC:
            if scope["method"] != "GET":
                check_origin(headers)
            return None
        credential = request_credential(headers)
        if credential.kind == "session":
            check_origin(headers)
        caller = await self._tokens().authenticate(credential)
        scope[CALLER] = caller
        return caller


def caller_in(scope: Scope) -> Caller:
    """The caller of a request that has passed the guard."""
    caller: Caller = scope[CALLER]
    return caller


def rate_refusal(excess: float) -> Problem:
    """The refusal of a request that was sent `excess` seconds too early."""
    text = "there are too many requests with this token, or from this address without a token"
    return Problem(
        code=Code.BUSY, message=text, remedy="retry after the time in Retry-After", retry_after_seconds=excess
    )


async def _checked_body(length: str, receive: Receive, limit: int) -> tuple[Response | None, bytes]:
    """The refusal of a body and no body, or None and the body."""
    try:
        body = await _read_body(length, receive, limit)
    except EOFError:
        text = "the connection ended within the body"
        return problem_response(problem_of(Code.INVALID_JSON, text, remedy="send it again")), b""
    if body is None:
        text = f"the body has more than {limit} bytes"
        return problem_response(problem_of(Code.TOO_LARGE, text, remedy="make it smaller")), b""
    return None, body


async def _read_body(length: str, receive: Receive, limit: int) -> bytes | None:
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


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body once, and then the end of the connection."""
    remaining_bodies = [body]

    async def replay_body() -> MutableMapping[str, Any]:
        if remaining_bodies:
            return {"type": "http.request", "body": remaining_bodies.pop(), "more_body": False}
        return await receive()

    return replay_body
