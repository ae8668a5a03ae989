"""Forwards a sandbox's fetch to its repository with the forge's credential, and returns the response.

The forge gets a new request. Only its body and its protocol version come from the sandbox, so no header or path of a
sandbox reaches the forge. No text of a failed response reaches the sandbox, because it may contain the credential.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import aiohttp

from spawner.git_proxy.exchange import HttpError, ProxyResponse
from spawner.git_proxy.routes import Service
from spawner.machine_proxy import machine_proxy
from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.repository_hosts import RepositoryHosts

_TIMEOUTS: Final = aiohttp.ClientTimeout(total=900.0, connect=10.0, sock_read=60.0)
_PIECE_BYTES: Final = 256 * 1024
_PROTOCOL_VERSION: Final = "version=2"
_SERVICE: Final = Service.FETCH
_DENIED: Final = frozenset({401, 403})
_OK: Final = 200
_RESPONSES: Final[Mapping[GitFault, tuple[int, str]]] = {
    GitFault.DENIED: (502, "the forge denies the spawner's credential for this repository"),
    GitFault.NOT_FOUND: (404, "the forge has no such repository, or the spawner's credential does not see it"),
    GitFault.UNAVAILABLE: (503, "the forge does not respond"),
}
"""The status and text of the proxy's response to the sandbox, by the fault of the request to the forge."""
_OTHER_REFUSAL: Final = (502, "the forge refuses the request")


@dataclass(frozen=True)
class _Request:
    method: str
    address: str
    media_type: str
    """The media type that the response must have."""
    protocol_version: bytes
    content: bytes | None = None


class FetchForwarder:
    """Sends requests to forges. `max_bytes` is the maximum size of one response."""

    def __init__(self, hosts: RepositoryHosts, session: aiohttp.ClientSession, max_bytes: int) -> None:
        self._hosts, self._session, self._max_bytes = hosts, session, max_bytes

    async def list_refs(self, url: str, protocol_version: bytes, response: ProxyResponse) -> None:
        """Forward a request for the refs or, in version 2, the server's capabilities. Raises `HttpError`."""
        address = f"{url.rstrip('/')}/info/refs?service={_SERVICE}"
        await self._forward(
            url, _Request("GET", address, f"application/x-{_SERVICE}-advertisement", protocol_version), response
        )

    async def objects(self, url: str, protocol_version: bytes, content: bytes, response: ProxyResponse) -> None:
        """Forward a request for objects. Raises `HttpError`."""
        request = _Request(
            "POST", f"{url.rstrip('/')}/{_SERVICE}", f"application/x-{_SERVICE}-result", protocol_version, content
        )
        await self._forward(url, request, response)

    async def _forward(self, url: str, request: _Request, response: ProxyResponse) -> None:
        try:
            await self._hosts.use(url, partial(self._send, request, response))
        except GitError as error:
            if response.has_begun:
                raise  # the connection is closed: git reports an incomplete response
            status, text = _RESPONSES.get(error.fault, _OTHER_REFUSAL)
            raise HttpError(status, text) from None

    async def _send(self, request: _Request, response: ProxyResponse, remote: RemoteRepository) -> None:
        try:
            async with self._session.request(
                request.method, request.address, headers=_headers(remote, request), data=request.content,
                allow_redirects=False, proxy=machine_proxy(request.address), timeout=_TIMEOUTS,
            ) as received:  # fmt: skip
                _check_response(received, request.media_type)
                await self._forward_response(received, request.media_type, response)
                return
        except TimeoutError:
            failure = "no response in time"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = f"can't be reached ({type(error).__name__})"
        # Raised outside of `except`: the client's error, which contains the request's headers, is not its context.
        raise GitError(GitFault.UNAVAILABLE, failure)

    async def _forward_response(
        self, received: aiohttp.ClientResponse, media_type: str, response: ProxyResponse
    ) -> None:
        await response.begin(_OK, media_type)
        size = 0
        async for part in received.content.iter_chunked(_PIECE_BYTES):
            size += len(part)
            if size > self._max_bytes:
                raise GitError(GitFault.TOO_LARGE, "the response is too large (SANDHERD_MAX_REPOSITORY_MB)")
            await response.part(part)
        await response.part(b"", more=False)


def _headers(remote: RemoteRepository, request: _Request) -> dict[str, str]:
    headers = {"User-Agent": "git/2 (sandherd)", "Accept": "*/*"}
    if request.content is not None:
        headers |= {"Content-Type": f"application/x-{_SERVICE}-request", "Accept": request.media_type}
    if request.protocol_version == _PROTOCOL_VERSION.encode():
        headers["Git-Protocol"] = _PROTOCOL_VERSION
    if remote.credential is not None:
        user_and_password = f"{remote.credential.username}:{remote.credential.password}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(user_and_password).decode()}"
    return headers


def _check_response(received: aiohttp.ClientResponse, media_type: str) -> None:
    """Raise `GitError` unless the response is a success of this media type."""
    if received.status in _DENIED:
        raise GitError(GitFault.DENIED, f"status {received.status}")
    if received.status == 404:  # an HTTP status
        raise GitError(GitFault.NOT_FOUND, "status 404")
    if received.status != _OK or received.headers.get("Content-Type") != media_type:
        fault = GitFault.UNAVAILABLE if received.status >= 500 or received.status == 429 else GitFault.REFUSED
        raise GitError(fault, f"status {received.status}")
