"""A gateway without a herd: the built pages, served as the gateway does, and responses that a test sets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from starlette.datastructures import Headers

from gateway.browser_security import PAGE_HEADERS
from gateway.pages import StaticPages
from tests.polling import eventually

SESSION = {"project": "demo", "name": "ada", "role": "operate", "expires_at": "2026-12-24T12:00:00Z"}
PREFIX = "/api/v1"


@dataclass
class Held:
    """A reply that is sent when the test decides; its content was read when the request arrived."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class GatewayDouble:
    """The double. `replies` are documents by path below the prefix; a number is a refusal with that status."""

    replies: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    slow: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when requests may be answered."""
    received: list[tuple[str, str, Any]] = field(default_factory=list)
    """The method, the path with query, and the document of each request that is not a GET."""
    requested: list[str] = field(default_factory=list)
    """Every requested path and query, pages included."""
    begun_streams: int = 0
    _held: dict[str, Held] = field(default_factory=dict)
    _streams: set[web.StreamResponse] = field(default_factory=set)
    _pages: StaticPages = field(default_factory=StaticPages)
    _sequence: int = 100

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["GatewayDouble"]:
        """Serve at a free port of the loopback until the end of the block."""
        self.slow.set()
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    @property
    def open_streams(self) -> int:
        """The number of open streams of events."""
        self._streams = {stream for stream in self._streams if not is_closed(stream)}
        return len(self._streams)

    def hold(self, path: str) -> Held:
        """Hold the reply to the next request with this path; later ones are answered, and may overtake it."""
        return self._held.setdefault(path, Held())

    async def publish(self, envelope: dict[str, Any]) -> None:
        """Publish an event to every open stream, once there is one: a page shows data before its stream is open."""
        self._sequence += 1
        text = f"event: {envelope['type']}\nid: e-{self._sequence}\ndata: {json.dumps(envelope)}\n\n"
        await eventually(lambda: self.open_streams, "a stream is open")
        for stream in list(self._streams):
            await stream.write(text.encode())

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requested.append(request.path_qs)
        if not request.path.startswith("/api/"):
            return self._page(request)
        path = request.path.removeprefix(PREFIX)
        if path.endswith("/stream"):
            return await self._stream(request)
        await self.slow.wait()
        if request.method != "GET":
            text = await request.text()
            self.received.append((request.method, request.path_qs, json.loads(text) if text else None))
        found = self.replies.get(f"{request.method} {path}", self.replies.get(path, 404))
        if path == "/approvals" and "state" in request.query and isinstance(found, dict):
            wanted = request.query["state"]
            found = {**found, "approvals": [one for one in found["approvals"] if one["state"] == wanted]}
        if held := self._held.pop(path, None):
            held.arrived.set()
            await held.released.wait()
        return self._reply(found)

    def _page(self, request: web.Request) -> web.Response:
        found = self._pages.response(request.method, request.path, Headers(dict(request.headers)))
        headers = {name.decode(): value.decode() for name, value in PAGE_HEADERS}
        shown = {name: value for name, value in found.headers.items() if name != "content-length"}
        return web.Response(body=bytes(found.body), status=found.status_code, headers={**shown, **headers})

    def _reply(self, found: Any) -> web.Response:
        if isinstance(found, int):
            problem = {"type": "about:blank", "title": "Refused", "status": found, "detail": "the test refuses this",
                       "code": "unavailable", "remedy": "retry"}  # fmt: skip
            return web.json_response(problem, status=found, content_type="application/problem+json")
        return web.json_response(found, status=202 if set(found) == {"name"} else 200)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if isinstance(self.replies.get("/stream"), int):
            return self._reply(self.replies["/stream"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        await response.write(b'event: ready\nid: e-100\ndata: {"reason": null}\n\n')
        self._streams.add(response)
        self.begun_streams += 1
        try:
            await asyncio.Event().wait()
        finally:
            self._streams.discard(response)
        return response

    async def disconnect(self) -> None:
        """End all open streams; further ones are refused until `replies` has no `/stream`."""
        self.replies["/stream"] = 503
        for stream in list(self._streams):
            if not is_closed(stream):
                stream._req.transport.close()  # type: ignore[union-attr]  # it has one


def is_closed(stream: web.StreamResponse) -> bool:
    """Whether the client of the stream has disconnected."""
    transport = stream._req.transport if stream._req is not None else None
    return transport is None or transport.is_closing()
