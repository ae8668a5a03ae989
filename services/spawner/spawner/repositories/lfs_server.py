"""A client of the Git LFS server of one repository: its batch API, and transfers of objects.

The program git-lfs is not run, and `.lfsconfig` is not read, because the repository could choose the server with it.
A server chooses the URL of each object. So only permitted hosts are contacted, and only the repository's own host gets
the credential.
"""

import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Final
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from spawner.repositories.credential_file import origin_of
from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.git_output import printed_text, secrets_of
from spawner.repositories.lfs_pointers import LfsPointer

_JSON: Final = "application/vnd.git-lfs+json"
_TIMES: Final = aiohttp.ClientTimeout(total=900.0, connect=10.0, sock_read=60.0)
_MAX_BATCH: Final = 100
_MAX_RESPONSE: Final = 4 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_REDIRECTS: Final = 3
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_SUCCESS: Final = range(200, 300)
_FAULTS: Final[Mapping[int, GitFault]] = {
    401: GitFault.DENIED, 403: GitFault.DENIED, 404: GitFault.NOT_FOUND, 410: GitFault.NOT_FOUND,
    408: GitFault.UNAVAILABLE, 429: GitFault.UNAVAILABLE,
}  # fmt: skip
_SERVER_FAULT: Final = 500
_SECRET: Final = 20
"""A header value of a transfer may contain a credential if it has this number of characters or more."""
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,100}")


class LfsAction(BaseModel):
    """A request that transfers an object."""

    href: Annotated[str, StringConstraints(max_length=8000, pattern=r"^https?://[\x21-\x7e]+$")]
    header: dict[str, Annotated[str, StringConstraints(max_length=8000, pattern=r"^[\x20-\x7e]*$")]] = {}


class _Failure(BaseModel):
    code: int
    message: str = ""


class _Object(BaseModel):
    oid: str
    actions: dict[str, LfsAction] = {}
    error: _Failure | None = None


class _Batch(BaseModel):
    objects: Annotated[list[_Object], Field(max_length=_MAX_BATCH)]


class LfsServer:
    """The objects of one repository. Methods raise `GitError`, whose message has no credential."""

    def __init__(self, remote: RemoteRepository, session: aiohttp.ClientSession, origins: Collection[str]) -> None:
        """`origins`: the origins that may be contacted."""
        self._remote, self._session, self._origins = remote, session, origins
        suffix = "" if remote.url.endswith(".git") else ".git"
        self._url = f"{remote.url.removesuffix('/')}{suffix}/info/lfs/objects/batch"

    async def actions(
        self, operation: str, wanted: Sequence[LfsPointer]
    ) -> Mapping[LfsPointer, Mapping[str, LfsAction]]:
        """The requests that transfer each object, by name; none for an upload that the server does not need."""
        found: dict[LfsPointer, Mapping[str, LfsAction]] = {}
        for begin in range(0, len(wanted), _MAX_BATCH):
            some = wanted[begin : begin + _MAX_BATCH]
            by_oid = {one.oid: one for one in some}
            for one in (await self._batch(operation, some)).objects:
                if one.error is not None:
                    raise self._error(one.error.code, f"object {one.oid[:12]}: {one.error.message}")
                if one.oid in by_oid:
                    found[by_oid.pop(one.oid)] = one.actions
            if by_oid:
                raise GitError(GitFault.UNAVAILABLE, f"Git LFS: no response for object {next(iter(by_oid))[:12]}")
        return found

    async def _batch(self, operation: str, wanted: Sequence[LfsPointer]) -> _Batch:
        objects = [{"oid": one.oid, "size": one.size} for one in wanted]
        body = json.dumps({"operation": operation, "transfers": ["basic"], "objects": objects, "hash_algo": "sha256"})
        headers = {"Accept": _JSON, "Content-Type": _JSON}
        async with self._request("POST", LfsAction(href=self._url, header=headers), body.encode()) as response:
            content = await response.content.read(_MAX_RESPONSE + 1)
            while part := await response.content.read(_MAX_RESPONSE + 1 - len(content)):
                content += part
        try:
            return _Batch.model_validate_json(content[:_MAX_RESPONSE])
        except ValidationError:
            pass  # this error contains the response, which may contain a credential
        raise GitError(GitFault.UNAVAILABLE, "Git LFS: the server's response is not one of the batch API")

    async def download(self, pointer: LfsPointer, action: LfsAction, file: IO[bytes]) -> None:
        """Write the object to a file. Raises `GitError` if it is not the one that the pointer names."""
        digest, size = hashlib.sha256(), 0
        async with self._request("GET", action) as response:
            async for part in response.content.iter_chunked(_PIECE):
                size += len(part)
                if size > pointer.size:
                    break
                digest.update(part)
                file.write(part)
        if (size, digest.hexdigest()) != (pointer.size, pointer.oid):
            raise GitError(GitFault.UNAVAILABLE, f"Git LFS: object {pointer.oid[:12]} is not what its pointer names")

    async def upload(self, pointer: LfsPointer, actions: Mapping[str, LfsAction], file: Path) -> None:
        """Store the file's content as the object."""
        put = actions["upload"]
        types = {name.lower() for name in put.header}
        extra = {} if "content-type" in types else {"Content-Type": "application/octet-stream"}
        with file.open("rb") as opened:
            length = {"Content-Length": str(pointer.size)}
            async with self._request("PUT", LfsAction(href=put.href, header={**put.header, **extra, **length}), opened):
                pass
        if (verify := actions.get("verify")) is not None:
            body = json.dumps({"oid": pointer.oid, "size": pointer.size}).encode()
            headers = {"Accept": _JSON, "Content-Type": _JSON, **verify.header}
            async with self._request("POST", LfsAction(href=verify.href, header=headers), body):
                pass

    @asynccontextmanager
    async def _request(self, method: str, action: LfsAction, body: Any = None) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._followed(method, action, body) as response:
                if response.status not in _SUCCESS:
                    text = (await response.content.read(_PIECE)).decode("utf-8", "replace")
                    raise self._error(response.status, text, action.header.values())
                yield response
                return
        except TimeoutError:
            failure = "no response in time"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = f"can't be reached ({type(error).__name__})"
        # Raised outside of `except`: the client's error, which contains the request's headers, is not its context.
        raise GitError(GitFault.UNAVAILABLE, f"Git LFS: {urlsplit(action.href).hostname}: {failure}")

    @asynccontextmanager
    async def _followed(self, method: str, action: LfsAction, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response. A GET follows redirects; another host gets neither the headers nor the credential."""
        url, headers = action.href, self._headers(action)
        for _ in range(_REDIRECTS + 1):
            if origin_of(url) not in self._origins:
                problem = f"{origin_of(url)} is not permitted (SANDHERD_LFS_HOSTS)"
                raise GitError(GitFault.REFUSED, f"Git LFS: {problem}")
            async with self._session.request(
                method, url, headers=headers, data=body, allow_redirects=False, proxy=machine_proxy(url), timeout=_TIMES
            ) as response:
                if method != "GET" or response.status not in _MOVED:
                    yield response
                    return
                moved = urljoin(url, response.headers.get("Location", ""))
                url, headers = moved, headers if origin_of(moved) == origin_of(url) else {}
        raise GitError(GitFault.REFUSED, f"Git LFS: more than {_REDIRECTS} redirects")

    def _headers(self, action: LfsAction) -> dict[str, str]:
        headers = {name: value for name, value in action.header.items() if _HEADER.fullmatch(name)}
        credential, known = self._remote.credential, {name.lower() for name in headers}
        if credential is not None and origin_of(action.href) == credential.origin and "authorization" not in known:
            pair = f"{credential.username}:{credential.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers

    def _error(self, status: int, text: str, hidden: Collection[str] = ()) -> GitError:
        fault = _FAULTS.get(status, GitFault.UNAVAILABLE if status >= _SERVER_FAULT else GitFault.REFUSED)
        credential = self._remote.credential
        secrets = secrets_of(credential.username, credential.password) if credential else ()
        secrets += tuple(value for value in hidden if len(value) >= _SECRET)
        return GitError(fault, f"Git LFS: status {status}: {printed_text(text.encode(), secrets)[:500]}")


def new_session() -> aiohttp.ClientSession:
    """A session without cookies and without compressed responses, which could expand to any size."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True),  # aiohttp repeats a PUT if a reused connection is closed
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"accept-encoding": "identity"},
    )


def machine_proxy(url: str) -> str | None:
    """The machine's proxy for this URL, by the rules of git; None without one."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
