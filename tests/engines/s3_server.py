"""A server with the API of S3, and a network before it that fails when a test requests it."""

import asyncio
import io
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from uuid import uuid4

import aiohttp
from aiohttp import web
from yarl import URL

from tests.npm_packages import S3, node_with

BUCKET: Final = "herd"
KEY: Final = "S3RVER"
"""The only key id and the only secret of the server."""
_MAX_BYTES: Final = 64 * 1024 * 1024


class Fault(Enum):
    """How a request fails."""

    HELD = "held before the server gets it"
    HELD_REPLY = "held when the server has replied"
    SILENT = "never replied to"
    CUT = "replied to with half of the body"
    DENIED = "403 AccessDenied"
    BUSY = "503 SlowDown"
    FULL = "507 XMinioStorageFull"


class S3Network:
    """Forwards requests, except those for which `fault` returns a fault."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._ended = asyncio.Event()
        self._session: aiohttp.ClientSession
        self._loop: asyncio.AbstractEventLoop
        self.prefix = uuid4().hex
        self.url = ""
        self.requests: list[str] = []
        """Each request as `METHOD name`, with the last part of the path."""
        self.fault: Callable[[str], Fault | None] = lambda request: None
        """The fault of a request, which is written as in `requests`."""
        self.held = Event()
        """Set when a request is held."""

    async def serve(self, started: "Future[str]") -> None:
        """Serve until `end`; `started` receives the URL."""
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=_MAX_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner: Any = web.AppRunner(app, shutdown_timeout=1)
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            started.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}")
            await self._ended.wait()
            await runner.cleanup()

    def end(self) -> None:
        """Reply to held requests, and stop serving."""
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """Reply to one request."""
        body = await request.read()
        name = f"{request.method} {request.path.rpartition('/')[2]}"
        self.requests.append(name)
        fault = self.fault(name)
        if fault in (Fault.DENIED, Fault.BUSY, Fault.FULL):
            status, code = fault.value.split()
            return web.Response(status=int(status), text=f"<Error><Code>{code}</Code></Error>")
        if fault in (Fault.SILENT, Fault.HELD):
            await self._hold()
        reply = await self._pass_on(request, body)
        if fault is Fault.HELD_REPLY:
            await self._hold()
        if fault is Fault.CUT:
            return await self._cut(request, reply)
        return reply

    async def _hold(self) -> None:
        self.held.set()
        await self._ended.wait()

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        url = URL(self._server + request.raw_path, encoded=True)
        data = io.BytesIO(body) if body else None
        async with self._session.request(request.method, url, headers=request.headers, data=data) as reply:
            content = await reply.read()
            headers = {name: value for name, value in reply.headers.items() if name != "Transfer-Encoding"}
            return web.Response(status=reply.status, body=content or None, headers=headers)

    async def _cut(self, request: web.Request, whole: web.Response) -> web.StreamResponse:
        assert isinstance(whole.body, bytes)
        part = web.StreamResponse(status=whole.status, headers=whole.headers)
        await part.prepare(request)
        await part.write(whole.body[: len(whole.body) // 2])
        assert request.transport is not None
        request.transport.abort()
        return part


@contextmanager
def serving_s3(folder: Path) -> Iterator[str]:
    """The URL of a server with one bucket, whose objects are in a folder."""
    node, packages = node_with(S3)
    command = [node, str(packages / "serve.mjs"), str(folder), BUCKET]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server of S3 does not start"
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def s3_network(server: str) -> Iterator[S3Network]:
    """A network before a server, in its own thread, as archives are read and written by blocking calls."""
    network = S3Network(server)
    started: Future[str] = Future()
    thread = Thread(target=lambda: asyncio.run(network.serve(started)))
    thread.start()
    try:
        network.url = started.result()
        yield network
    finally:
        network.end()
        thread.join()
