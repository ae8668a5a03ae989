"""A client of the Git LFS server of one repository: its batch API, and transfers of objects.

The program git-lfs is not run, and `.lfsconfig` is not read, because with them a repository could choose the server.
The server chooses the URL of each object. So only permitted hosts are contacted, and only the repository's host gets
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

import aiohttp
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from spawner.machine_proxy import machine_proxy
from spawner.repositories.credential_file import origin_of
from spawner.repositories.git import GitError, GitFault, RemoteRepository
from spawner.repositories.git_output import printed_text, secrets_of
from spawner.repositories.lfs_pointers import LfsPointer

_MEDIA_TYPE: Final = "application/vnd.git-lfs+json"
_TIMEOUTS: Final = aiohttp.ClientTimeout(total=900.0, connect=10.0, sock_read=60.0)
_MAX_BATCH: Final = 100
"""Maximum objects of one request to the batch API."""
_MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_MAX_REDIRECTS: Final = 3
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_SUCCESS: Final = range(200, 300)
_FAULTS: Final[Mapping[int, GitFault]] = {
    401: GitFault.DENIED, 403: GitFault.DENIED, 404: GitFault.NOT_FOUND, 410: GitFault.NOT_FOUND,
    408: GitFault.UNAVAILABLE, 429: GitFault.UNAVAILABLE,
}  # fmt: skip
"""The fault by HTTP status. For others, see `LfsServer._error`."""
_FIRST_SERVER_ERROR: Final = 500
_MIN_SECRET_CHARACTERS: Final = 20
"""The minimum length of header values that are removed from messages, because they may contain a credential."""
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,100}")


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
    """The objects of one repository. Methods raise `GitError`. Its message contains no credential."""

    def __init__(self, remote: RemoteRepository, session: aiohttp.ClientSession, origins: Collection[str]) -> None:
        """`origins`: the origins that may be contacted."""
        self._remote, self._session, self._origins = remote, session, origins
        suffix = "" if remote.url.endswith(".git") else ".git"
        self._url = f"{remote.url.removesuffix('/')}{suffix}/info/lfs/objects/batch"

    async def actions(
        self, operation: str, wanted: Sequence[LfsPointer]
    ) -> Mapping[LfsPointer, Mapping[str, LfsAction]]:
        """The requests that transfer each object, by name; none for an object to upload that the server has already."""
        actions: dict[LfsPointer, Mapping[str, LfsAction]] = {}
        for begin in range(0, len(wanted), _MAX_BATCH):
            batch = wanted[begin : begin + _MAX_BATCH]
            by_oid = {one.oid: one for one in batch}
            for one in (await self._batch(operation, batch)).objects:
                if one.error is not None:
                    raise self._error(one.error.code, f"object {one.oid[:12]}: {one.error.message}")
                if one.oid in by_oid:
                    actions[by_oid.pop(one.oid)] = one.actions
            if by_oid:
                raise GitError(GitFault.UNAVAILABLE, f"Git LFS: no response for object {next(iter(by_oid))[:12]}")
        return actions

    async def _batch(self, operation: str, wanted: Sequence[LfsPointer]) -> _Batch:
        objects = [{"oid": one.oid, "size": one.size} for one in wanted]
        body = json.dumps({"operation": operation, "transfers": ["basic"], "objects": objects, "hash_algo": "sha256"})
        headers = {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE}
        async with self._request("POST", LfsAction(href=self._url, header=headers), body.encode()) as response:
            content = await response.content.read(_MAX_RESPONSE_BYTES + 1)
            while part := await response.content.read(_MAX_RESPONSE_BYTES + 1 - len(content)):
                content += part
        try:
            return _Batch.model_validate_json(content[:_MAX_RESPONSE_BYTES])
        except ValidationError:
            pass  # not used as the context of the error below: it contains the response, which may have a credential
        raise GitError(GitFault.UNAVAILABLE, "Git LFS: the server's response is not valid in the batch API")

    async def download(self, pointer: LfsPointer, action: LfsAction, file: IO[bytes]) -> None:
        """Write the object to a file. Raises `GitError` if its size or SHA-256 differs from that in the pointer."""
        digest, size = hashlib.sha256(), 0
        async with self._request("GET", action) as response:
            async for part in response.content.iter_chunked(_PIECE_BYTES):
                size += len(part)
                if size > pointer.size:
                    break
                digest.update(part)
                file.write(part)
        if (size, digest.hexdigest()) != (pointer.size, pointer.oid):
            raise GitError(GitFault.UNAVAILABLE, f"Git LFS: object {pointer.oid[:12]} differs from its pointer")

    async def upload(self, pointer: LfsPointer, actions: Mapping[str, LfsAction], file: Path) -> None:
        """Store the file's content as the object, and let the server verify it if it wants to."""
        put = actions["upload"]
        types = {name.lower() for name in put.header}
        content_type = {} if "content-type" in types else {"Content-Type": "application/octet-stream"}
        with file.open("rb") as content:
            length = {"Content-Length": str(pointer.size)}
            async with self._request(
                "PUT", LfsAction(href=put.href, header={**put.header, **content_type, **length}), content
            ):
                pass
        if (verify := actions.get("verify")) is not None:
            body = json.dumps({"oid": pointer.oid, "size": pointer.size}).encode()
            headers = {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE, **verify.header}
            async with self._request("POST", LfsAction(href=verify.href, header=headers), body):
                pass

    @asynccontextmanager
    async def _request(self, method: str, action: LfsAction, body: Any = None) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._open(method, action, body) as response:
                if response.status not in _SUCCESS:
                    text = (await response.content.read(_PIECE_BYTES)).decode("utf-8", "replace")
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
    async def _open(self, method: str, action: LfsAction, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response. A GET follows redirects. Another host gets neither the headers nor the credential."""
        url, headers = action.href, self._headers(action)
        for _ in range(_MAX_REDIRECTS + 1):
            if origin_of(url) not in self._origins:
                problem = f"{origin_of(url)} is not permitted (SANDHERD_LFS_HOSTS)"
                raise GitError(GitFault.REFUSED, f"Git LFS: {problem}")
            async with self._session.request(
                method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                proxy=machine_proxy(url),
                timeout=_TIMEOUTS,
            ) as response:
                if method != "GET" or response.status not in _REDIRECT_STATUSES:
                    yield response
                    return
                target = urljoin(url, response.headers.get("Location", ""))
                url, headers = target, headers if origin_of(target) == origin_of(url) else {}
        raise GitError(GitFault.REFUSED, f"Git LFS: more than {_MAX_REDIRECTS} redirects")

    def _headers(self, action: LfsAction) -> dict[str, str]:
        headers = {name: value for name, value in action.header.items() if _HEADER_NAME.fullmatch(name)}
        credential, names = self._remote.credential, {name.lower() for name in headers}
        if credential is not None and origin_of(action.href) == credential.origin and "authorization" not in names:
            pair = f"{credential.username}:{credential.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers

    def _error(self, status: int, text: str, secret_values: Collection[str] = ()) -> GitError:
        fault = _FAULTS.get(status, GitFault.UNAVAILABLE if status >= _FIRST_SERVER_ERROR else GitFault.REFUSED)
        credential = self._remote.credential
        secrets = secrets_of(credential.username, credential.password) if credential else ()
        secrets += tuple(value for value in secret_values if len(value) >= _MIN_SECRET_CHARACTERS)
        return GitError(fault, f"Git LFS: status {status}: {printed_text(text.encode(), secrets)[:500]}")


def new_session() -> aiohttp.ClientSession:
    """A session without cookies. It accepts no compressed responses, which could expand to any size."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True),  # aiohttp repeats a PUT if a reused connection is closed
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"accept-encoding": "identity"},
    )
