"""The HTTP client for all forges. It has limits of time and size, and no redirects, cookies or compressed responses."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from spawner.forges.faults import ForgeError, ForgeFault
from spawner.machine_proxy import machine_proxy

_TIMEOUTS: Final = aiohttp.ClientTimeout(total=30.0, connect=10.0)
_MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
_MAX_HEADER_BYTES: Final = 8190


@dataclass(frozen=True)
class Reply:
    """A response, with the names of its headers in lower case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)  # the body may contain an issued token

    def parsed(self) -> Any:
        """The body's JSON; its text if it is not JSON; None if it is empty."""
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return self.body.decode(errors="replace")


class LostResponseError(aiohttp.ClientError):
    """The connection was closed without a response."""


async def _send_write_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a write only once. aiohttp would repeat a PUT after a closed connection, but it may have taken effect."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET":
            raise
        kind = type(error).__name__
    raise LostResponseError(kind)


class HttpClient:
    """The connections to forges. They are opened when the first request is sent."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # so that a small response can't become a large one
                headers={"accept-encoding": "identity"},
                timeout=_TIMEOUTS,
                max_line_size=_MAX_HEADER_BYTES,
                max_field_size=_MAX_HEADER_BYTES,
                middlewares=(_send_write_once,),
            )
        return self._session

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Reply:
        """Send a request. Raises `ForgeError`, with the fault `UNAVAILABLE` if there is no complete response."""
        try:
            return await self._request(method, url, headers, body)
        except TimeoutError:
            failure = f"no response within {_TIMEOUTS.total:.0f} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = f"can't be reached ({type(error).__name__})"
        # Raised outside of `except`: the client's error, which contains the request's headers, is not its context.
        raise ForgeError(ForgeFault.UNAVAILABLE, f"{urlsplit(url).hostname}: {failure}")

    async def _request(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        async with self._open_session().request(
            method, url, headers=headers, data=body or None, allow_redirects=False, proxy=machine_proxy(url)
        ) as response:
            content = await _body(response)
            return Reply(response.status, {name.lower(): value for name, value in response.headers.items()}, content)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


async def _body(response: aiohttp.ClientResponse) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise ForgeError(ForgeFault.UNAVAILABLE, "the response is compressed, which was not requested")
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > _MAX_RESPONSE_BYTES:
            raise ForgeError(ForgeFault.REFUSED, f"the response has more than {_MAX_RESPONSE_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)
