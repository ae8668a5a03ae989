"""A git server over HTTP: git's own http-backend (git-http-backend(1)), behind basic authentication."""

import asyncio
import base64
import binascii
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from tests.doubles.lfs_store import LfsStore
from tests.http_servers import stop_server

_BACKEND: Final = "/usr/lib/git-core/git-http-backend"
USER: Final = "x-access-token"


class RefusedError(Exception):
    """The response to a request that is not admitted; git shows the text to its user."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass
class GitServer:
    """Serves the repositories in `root`. `token` is required if it is set; `failing` responses with 503 come first."""

    root: Path
    url: str = ""
    token: str | None = None
    failing: int = 0
    redirect: str | None = None
    """The URL to which every request is redirected."""
    silent: bool = False
    """Whether it accepts requests and never responds."""
    received: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[web.Request] = field(default_factory=list)
    lfs: LfsStore | None = None
    """The objects of Git LFS, if the server has it."""
    admits: Callable[[web.Request, str | None], Mapping[str, str]] | None = None
    """Decides instead of `token`, by the request and password: returns variables for hooks or raises `RefusedError`."""

    async def answer(self, request: web.Request) -> web.Response:
        """Respond to one request through the backend."""
        self.requests.append(request)
        self.received.set()
        if self.silent:
            await asyncio.Event().wait()
        if self.redirect is not None:
            return web.Response(status=302, headers={"Location": self.redirect + request.path_qs})
        if self.failing > 0:
            self.failing -= 1
            return web.Response(status=503)
        try:
            admitted = self._admit(request)
        except RefusedError as refusal:
            headers = (
                {"WWW-Authenticate": 'Basic realm="git"'} if refusal.status == web.HTTPUnauthorized.status_code else {}
            )
            return web.Response(status=refusal.status, text=refusal.text, headers=headers)
        if self.lfs is not None and self.lfs.serves(request.path):
            return await self.lfs.answer(request, self.url)
        return await self._backend(request, admitted)

    def _admit(self, request: web.Request) -> Mapping[str, str]:
        if self.lfs is not None and self.lfs.admits(request):
            return {}
        user, password = credentials(request)
        if self.admits is not None:
            return self.admits(request, password)
        if self.token is not None and (user, password) != (USER, self.token):
            raise RefusedError(web.HTTPUnauthorized.status_code)
        return {"REMOTE_USER": USER if self.token else ""}

    async def _backend(self, request: web.Request, admitted: Mapping[str, str]) -> web.Response:
        environment = {**self._environment(request), **admitted}
        process = await asyncio.create_subprocess_exec(
            _BACKEND, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            out, _ = await process.communicate(await request.read())
        finally:  # a request that is cancelled, as the server stops, must not leave its program
            if process.returncode is None:
                process.kill()
                await process.communicate()
        head, _, body = out.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(status=status, headers=headers, body=body)

    def _environment(self, request: web.Request) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": "",  # aiohttp has decoded the body
            "HTTP_GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }


def credentials(request: web.Request) -> tuple[str | None, str | None]:
    """The user and password of basic authentication; both are None without it."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    try:
        user, _, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None, None
    return (user, password) if kind.lower() == "basic" else (None, None)


@asynccontextmanager
async def git_server(root: Path, token: str | None = None) -> AsyncIterator[GitServer]:
    """A server of the repositories in this folder, at a random port."""
    server = GitServer(root, token=token)
    app = web.Application(client_max_size=1024**3)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = "http://{}:{}".format(*runner.addresses[0])
    try:
        yield server
    finally:
        await stop_server(runner)
