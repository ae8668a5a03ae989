"""The git proxy: an HTTP server of the spawner for sandboxes, at a separate address.

It runs in the spawner, which has the credentials of forges, the records of sandboxes and branches, and the only code
that pushes. A separate service would need all three: a second process would have each credential, and would need a way
to make the spawner push. The proxy adds a parser of HTTP (h11) and a small part of git's protocol to the spawner. Packs
are read only by git, in the quarantine of saved commits.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from sandherd.bus.connection import Bus
from sandherd.service.http_connections import BoundedConnection, ConnectionLimits, OpenConnections, open_files
from sandherd.service.uvicorn_server import MAX_HEADER_BYTES, HttpServerError, serving
from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.git_proxy import proxy_decisions
from spawner.git_proxy.exchange import DisconnectedError, HttpError, ProxyResponse, Receive, RequestBody, Send
from spawner.git_proxy.pushes import PushReceiver
from spawner.git_proxy.routes import GitRoute, Service, password_of, route_of
from spawner.live_state import LiveState
from spawner.records.base_record import StoreUnavailableError
from spawner.repositories.branch_artifacts import BranchArtifacts
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.git import GitError
from spawner.repositories.mirror_paths import mirrors_folder
from spawner.repositories.mirrors import MAX_BUNDLE
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.sandboxes.git_proxy_access import ProxyTokens

if TYPE_CHECKING:
    from spawner.git_proxy.fetch_forwarder import FetchForwarder

_MIB: Final = 1024 * 1024
_MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of a request for objects. It lists the commits that the sandbox has, and those that it wants."""
_MAX_REQUESTS, _MAX_OF_PROJECT, _MAX_OF_SANDBOX = 32, 16, 2
"""Maximum requests that are served concurrently: in all, of one project, and of one sandbox."""
_CONNECTION_LIMITS: Final = ConnectionLimits(usual=64, maximum=256, grace=10.0, exchange=1000.0)
_TEXT_TYPE: Final = "text/plain; charset=utf-8"
_CHALLENGE: Final = ("www-authenticate", 'Basic realm="Sandherd"')
_log: Final = logs.get("git_proxy")


@dataclass(frozen=True)
class PushingSandbox:
    """The sandbox that sent a request, with its task, and the branch that it works on."""

    sandbox: str
    task: str
    branch: BranchRecord
    url: str


class GitProxy:
    """An ASGI application. `max_push`: the maximum bytes of a push."""

    def __init__(
        self, live: LiveState, tokens: ProxyTokens, fetches: "FetchForwarder", pushes: PushReceiver, max_push: int
    ) -> None:
        self._live, self._tokens, self._fetches, self._pushes = live, tokens, fetches, pushes
        self._max_push = max_push
        self._quota, self._fetch_quota = proxy_decisions.PushQuota(), proxy_decisions.FetchQuota()
        self._open, self._reports = Counter[str](), proxy_decisions.RefusalReports()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Respond to one request."""
        response, headers = ProxyResponse(send), _Headers(scope)
        try:
            await self._respond(headers, receive, response)
        except HttpError as error:
            await self._refuse(response, headers, error)
        except StoreUnavailableError:
            await self._refuse(response, headers, HttpError(503, "the herd's records are not available"))
        except (DisconnectedError, GitError) as error:
            _log.info("git proxy request not completed", error=repr(error))

    async def _respond(self, headers: "_Headers", receive: Receive, response: ProxyResponse) -> None:
        route = headers.route()
        if route is None:
            raise HttpError(404, "the git proxy serves git fetch and git push of one repository, and nothing else")
        token = password_of(headers.all(b"authorization"))
        if token is None or not self._tokens.accepts(route.project, route.sandbox, token):
            raise HttpError(401, "this is not the credential of the sandbox")
        with self._place(route.project, route.sandbox):
            await self._serve(route, await self._caller(route), headers, receive, response)

    async def _caller(self, route: GitRoute) -> PushingSandbox:
        """The sandbox of a request. Raises `HttpError` if it may use no branch of a repository with a URL."""
        held = await self._live.sandboxes.load(f"{route.project}.{route.sandbox}")
        task = await self._live.load_task(held.record) if held else None
        branch_id = proxy_decisions.usable_branch(held.record if held else None, task.record if task else None)
        branch = await self._live.branches.load(f"{route.project}.{branch_id}") if branch_id else None
        if task is None or branch is None or branch.record.url is None:
            raise HttpError(403, "the sandbox has ended, or its task does not use the git proxy")
        return PushingSandbox(route.sandbox, task.record.task, branch.record, branch.record.url)

    async def _serve(
        self, route: GitRoute, caller: PushingSandbox, headers: "_Headers", receive: Receive, response: ProxyResponse
    ) -> None:
        if route.service is Service.FETCH:
            await self._fetch(route, caller, headers, receive, response)
        elif route.lists:
            content = self._pushes.refs(caller.branch)
            await response.whole(200, f"application/x-{Service.PUSH}-advertisement", content)
        else:
            content = await self._push(route, caller, headers, receive)
            await response.whole(200, f"application/x-{Service.PUSH}-result", content)

    async def _fetch(
        self, route: GitRoute, caller: PushingSandbox, headers: "_Headers", receive: Receive, response: ProxyResponse
    ) -> None:
        if not self._fetch_quota.admit(f"{route.project}.{route.sandbox}", asyncio.get_running_loop().time()):
            raise HttpError(429, "too many fetches; try again in some minutes")
        version = next(iter(headers.all(b"git-protocol")), b"")
        if route.lists:
            await self._fetches.list_refs(caller.url, version, response)
            return
        content = await RequestBody(receive, _MAX_REQUEST_BYTES, compressed=headers.compressed()).whole()
        caller = await self._caller(route)  # the sandbox may have ended since the first part of a slow request
        await self._fetches.objects(caller.url, version, content, response)

    async def _push(self, route: GitRoute, caller: PushingSandbox, headers: "_Headers", receive: Receive) -> bytes:
        async def branch_now() -> BranchRecord:
            return (await self._caller(route)).branch

        sandbox, now = f"{route.project}.{route.sandbox}", asyncio.get_running_loop().time()
        limit = min(self._max_push, self._quota.left(sandbox, now))
        body = RequestBody(receive, limit, compressed=headers.compressed())
        counted = self._quota.admit(sandbox, now)
        if counted is None:
            raise HttpError(429, "too many pushes, or too large ones; try again in some minutes")
        counted.size = limit  # reserved until the size is known, so that concurrent pushes do not exceed the quota
        try:
            return await self._pushes.push(branch_now, caller.sandbox, caller.task, body)
        finally:
            counted.size = body.size

    @contextmanager
    def _place(self, project: str, sandbox: str) -> Iterator[None]:
        """Count a request while it is served. Raises `HttpError` if too many requests are being served."""
        limits = {project: _MAX_OF_PROJECT, f"{project}.{sandbox}": _MAX_OF_SANDBOX, "": _MAX_REQUESTS}
        if any(self._open[name] >= limit for name, limit in limits.items()):
            raise HttpError(429, "too many requests at once; try again later")
        self._open.update(limits.keys())
        try:
            yield
        finally:
            self._open.subtract(limits.keys())
            self._open = +self._open

    async def _refuse(self, response: ProxyResponse, headers: "_Headers", error: HttpError) -> None:
        self._count(headers, error)
        if response.has_begun:
            return
        extra = (_CHALLENGE,) if error.status == 401 else ()  # an HTTP status
        with contextlib.suppress(DisconnectedError):
            # The connection is closed, because the request's body was not read to its end.
            await response.whole(error.status, _TEXT_TYPE, f"{error}\n".encode(), ("connection", "close"), *extra)

    def _count(self, headers: "_Headers", error: HttpError) -> None:
        """Count and log a refusal, with the sandbox that the path names. Another one may have sent the request."""
        if error.status == 401 and not headers.all(b"authorization"):  # git's first request has no credential
            return
        route = headers.route()
        reason = proxy_decisions.reason_of(error.status) if route else "path"
        self._live.meters.count("sandherd_git_proxy_refusals_total", reason=reason)
        project, sandbox = (route.project, route.sandbox) if route else ("", "")
        now = asyncio.get_running_loop().time()
        if (number := self._reports.due(f"{project}.{sandbox}", reason, now)) is not None:
            _log.warning(
                "git proxy refused requests", project=project, sandbox=sandbox, reason=reason, requests=number,
                problem=str(error),
            )  # fmt: skip


class _Headers:
    """The method, path and headers of a request."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self._scope = scope

    def all(self, name: bytes) -> list[bytes]:
        """The values of a header."""
        return [value for known, value in self._scope["headers"] if known == name]

    def route(self) -> GitRoute | None:
        kind = b"".join(self.all(b"content-type")).decode("ascii", "replace")
        return route_of(self._scope["method"], self._scope["raw_path"], self._scope["query_string"], kind)

    def compressed(self) -> bool:
        """Whether the body is compressed. Raises `HttpError` for an encoding that git does not use."""
        encodings = self.all(b"content-encoding")
        if encodings not in ([], [b"gzip"], [b"identity"]):
            raise HttpError(415, "the request's encoding is not supported")
        return encodings == [b"gzip"]


async def serve_proxy(bus: Bus, live: LiveState, settings: Settings, hosts: RepositoryHosts, seed: str) -> None:
    """Serve the proxy until cancelled, if it is configured. Raises `HttpServerError` if its address can't be used."""
    if settings.git_proxy_url is None:
        await asyncio.Event().wait()
    # Imported here because their HTTP client takes long to load.
    from spawner.git_proxy.fetch_forwarder import FetchForwarder
    from spawner.repositories.lfs_server import new_session

    max_bytes = settings.max_repository_mb * _MIB
    pushes = PushReceiver(live, BranchArtifacts(bus), mirrors_folder(settings.home))
    async with new_session() as session:
        fetches = FetchForwarder(hosts, session, max_bytes)
        proxy = GitProxy(live, ProxyTokens.of(seed), fetches, pushes, min(max_bytes, MAX_BUNDLE))
        async with serving(_config(proxy), _listen(settings.git_proxy_listen)):
            await asyncio.Event().wait()


def _config(proxy: GitProxy) -> uvicorn.Config:
    loop = asyncio.get_running_loop()
    table = OpenConnections(_CONNECTION_LIMITS.within(open_files()), loop.time, loop.call_soon, lambda _reason: None)
    return uvicorn.Config(
        proxy,
        http=partial(BoundedConnection, table),  # type: ignore[arg-type]  # uvicorn only calls it, as it would call a class
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        access_log=False,
    )


def _listen(address: str) -> socket.socket:
    """A listening socket. Several replicas on one host may share the address."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family, reuse_port=True)
    except (OSError, OverflowError) as error:
        raise HttpServerError(f"can't serve the git proxy on {address} (SANDHERD_GIT_PROXY_LISTEN): {error}") from error
