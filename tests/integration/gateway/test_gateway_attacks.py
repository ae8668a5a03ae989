"""Attacks on a running gateway: ambiguous requests, other origins, hostile sockets, forged positions, proxies."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
import pytest

from gateway import event_stream
from gateway.api_server import MAX_MESSAGE
from sandherd.contracts.records import SharedAccessToken
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.gateway.conftest import OTHER, PROJECT, Api
from tests.integration.gateway.test_gateway_streams import SANDBOX, TOKEN, Talker, gateway, numbers
from tests.patience import PATIENCE

FOREIGN: Final = f"shd_{OTHER}_{'f' * 43}"
SOCKET: Final = f"/api/v1/sandboxes/{SANDBOX}/terminal"
KEY: Final = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
UPGRADE: Final = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n{KEY}"
BEARER: Final = f"Authorization: Bearer {TOKEN}\r\n"


@pytest.fixture
async def api(herd: Broker, http: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[Api]:
    """A gateway without services behind it, with a token of each project."""
    end = datetime.now(UTC) + timedelta(hours=1)
    async with herd.bus(Principal.SPAWNER) as bus:
        for project, text in ((PROJECT, TOKEN), (OTHER, FOREIGN)):
            record = SharedAccessToken(project=project, token="all", role="operate", expires_at=end)
            key = f"$KV.tokens.{project}.{sha256(text.encode()).hexdigest()}"
            await bus.js.publish(key, record.model_dump_json().encode())
    async with gateway(herd, http, tmp_path / "api.port") as found:
        yield found


async def sent(api: Api, request: str) -> tuple[int, str, str]:
    """The status, the head and the rest of the responses to these bytes, until the gateway ends the connection."""
    place = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(request.encode("latin-1"))
            text = (await reader.read()).decode("latin-1")
    finally:
        writer.close()
    head, _, rest = text.partition("\r\n\r\n")
    return int(head.split(" ")[1]), head.lower(), rest


async def test_each_response_forbids_browsers_to_interpret_it(api: Api) -> None:
    """Every response, also a refusal, forbids sniffing, frames and referrers, and other sites can't read it."""
    host, close, foreign = "Host: localhost\r\n", "Connection: close\r\n\r\n", "Origin: https://evil.example\r\n"
    for request, status in (
        (f"GET /api/v1/tasks HTTP/1.1\r\n{host}{close}", 401),
        (f"GET /api/v1/none HTTP/1.1\r\n{host}{BEARER}{close}", 404),
        (f"PUT /api/v1/tasks HTTP/1.1\r\n{host}{BEARER}{close}", 405),
        (f"GET /api/v1/tasks HTTP/1.1\r\nHost: evil.example\r\n{BEARER}{close}", 421),
        (f"POST /api/v1/tasks HTTP/1.1\r\n{host}{BEARER}Content-Length: 1\r\n{close}x", 422),
        (f"POST /api/v1/tasks HTTP/1.1\r\n{host}{BEARER}Content-Length: 9999999\r\n{close}", 413),
        (f"OPTIONS /api/v1/tasks HTTP/1.1\r\n{host}{foreign}Access-Control-Request-Method: POST\r\n{close}", 401),
        (f"POST /webhooks/github/none HTTP/1.1\r\n{host}Content-Length: 2\r\n{close}{{}}", 401),
        (f"GET /healthz HTTP/1.1\r\n{host}{foreign}{close}", 200),
        (f"POST / HTTP/1.1\r\n{host}{close}", 405),
        (f"GET {SOCKET} HTTP/1.1\r\nHost: evil.example\r\n{UPGRADE}{BEARER}\r\n", 421),
        (f"GET {SOCKET} HTTP/1.1\r\n{host}{foreign}{UPGRADE}{BEARER}\r\n", 403),
        (f"GET {SOCKET} HTTP/1.1\r\n{host}{UPGRADE}Authorization: Bearer x\r\n\r\n", 401),
    ):  # fmt: skip
        got, head, _ = await sent(api, request)
        assert got == status, request
        for header in ("x-content-type-options: nosniff", "frame-ancestors 'none'", "referrer-policy: no-referrer",
                       "cross-origin-resource-policy: same-origin", "x-request-id: req-"):  # fmt: skip
            assert header in head, (request, header)
        assert "access-control-" not in head


async def test_ambiguous_requests_are_one_request_at_the_most(api: Api) -> None:
    """Bytes that proxies and servers read differently are refused, or end the connection: no second request is read."""
    inner = f"GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\n{BEARER}Connection: close\r\n\r\n"
    post = f"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\n{BEARER}"
    size = len(inner)
    for request in (
        f"{post}Content-Length: {size}\r\nContent-Length: 0\r\n\r\n{inner}",
        f"{post}Content-Length: 0, {size}\r\n\r\n{inner}",
        f"{post}Content-Length: +0\r\n\r\n{inner}",
        f"{post}Content-Length : 0\r\n\r\n{inner}",
        f"{post}Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n{inner}",
        f"{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{inner}",
        f"{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{inner}",
        f"{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        f"{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n{inner}",
        f"{post}Content-Length: {size}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        f"{post}X: a\0b\r\n\r\n{inner}",
        f"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n{inner}",
        f"GET / HTTP/1.1\r\n\r\n{inner}",
        f"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n{inner}",
    ):
        status, head, rest = await sent(api, request)
        assert (400 <= status < 502, "http/1.1 200" in head + rest.lower()) == (True, False), request


async def test_hostile_messages_end_their_own_socket_only(api: Api) -> None:
    """A message that is too large, invalid JSON or Unicode, or not authenticated closes its socket with a code."""
    large = "x" * (MAX_MESSAGE + 1)
    for message, codes in (
        (large, {1009}),
        (large.encode(), {1009}),
        (b"\xff", {1008, 4401}),
        ("[", {1008}),
        ('{"type": "authenticate", "token": 7}', {4401}),
        (json.dumps({"type": "authenticate", "token": "\ud800"}), {4401}),
    ):
        async with asyncio.timeout(PATIENCE), api.session.ws_connect(api.url + SOCKET) as socket:
            await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_str(message))
            assert (await socket.receive()).data in codes, message
    assert (await api.call("GET", "/api/v1/session"))[0] == 200


async def test_position_of_another_project_shows_nothing_of_it(api: Api, herd: Broker) -> None:
    """A position of the whole stream can be guessed, but behind it the caller gets only its own project."""
    async with herd.bus(Principal.WORKER, project=PROJECT, sandbox=SANDBOX) as bus:
        await Talker(bus).publish_numbers(3)
    stranger = Api(api.url, api.session, FOREIGN)
    async with asyncio.timeout(PATIENCE), api.stream("/api/v1/events/stream") as own:
        await own.next()
        epoch = own.last.partition("-")[0]
        async with api.stream(f"/api/v1/events/stream?after={epoch}-0") as replayed:
            assert await numbers(replayed, 3) == [1, 2, 3]
        async with stranger.stream("/api/v1/events/stream", after=f"{epoch}-0") as foreign:
            assert (await foreign.next())[0] == "ready"
            async with herd.bus(Principal.WORKER, project=OTHER, sandbox="sbx-2") as bus:
                await Talker(bus, "sbx-2", OTHER).publish_numbers(1)
            assert (await foreign.next())[2]["subject"] == "sbx-2"


class Proxy:
    """A proxy that uses HTTP/1.0 to its server, and can cut every connection, as proxies with a time-out do."""

    def __init__(self, url: str) -> None:
        self.url = ""
        self._place = urlsplit(url)
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Cut all connections, and stop listening."""
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        """End all connections in the middle of a transfer."""
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        there, out = await asyncio.open_connection(self._place.hostname, self._place.port)
        self._open |= {writer, out}
        try:
            out.write(head.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            while piece := await there.read(1000):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self._open -= {writer, out}
            for one in (writer, out):
                one.close()


async def test_stream_continues_behind_a_proxy_that_cuts_it(api: Api, herd: Broker) -> None:
    """Each event arrives once, however often the proxy ends the connection; a proxy's time-out of 60 s ends none."""
    assert event_stream.HEARTBEAT * 3 < 60
    got: list[int] = []
    async with herd.bus(Principal.WORKER, project=PROJECT, sandbox=SANDBOX) as bus, Proxy(api.url) as proxy:
        talker, behind = Talker(bus), Api(proxy.url, api.session, TOKEN)
        position: str | None = None
        for _ in range(4):
            async with asyncio.timeout(PATIENCE), behind.stream("/api/v1/events/stream", after=position) as stream:
                assert stream.response.headers["X-Accel-Buffering"] == "no"
                assert (await stream.next())[0] == "ready"
                await talker.publish_numbers(10)
                got += await numbers(stream, talker.published - 3)
                position = stream.last
                proxy.cut()
                await _end(stream)
        async with asyncio.timeout(PATIENCE), behind.stream("/api/v1/events/stream", after=position) as stream:
            got += await numbers(stream, talker.published)
    assert got == list(range(1, 41))


async def _end(stream: Any) -> None:
    try:
        while True:
            await stream.next()
    except (EOFError, aiohttp.ClientError):
        pass
