"""Slow and stalled connections to a service's HTTP server end by themselves and do not block others."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from sandherd.contracts.subjects import Principal
from sandherd.service.http_connections import ConnectionLimits, OpenConnections
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

SHORT = ConnectionLimits(exchange=0.5)
FEW = ConnectionLimits(usual=8, maximum=16, grace=0.05, exchange=60)

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def serve(herd: Broker) -> AsyncIterator[Callable[[ConnectionLimits], Any]]:
    """A function that starts a service with these limits; it returns the service's port."""
    async with AsyncExitStack() as stack:

        async def start(limits: ConnectionLimits) -> Service:
            service = Service(Principal.MONITOR, herd.settings(Principal.MONITOR))
            service._http_server.limits = limits  # not a setting: only tests use other limits
            return await stack.enter_async_context(service.running())

        yield start


WAYS = {
    "no byte": b"",
    "half a request line": b"GET /heal",
    "half a header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: ",
    "half a body": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
    "half a chunk": b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf",
    "kept open": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "an upgrade": b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.parametrize("sent", WAYS.values(), ids=WAYS.keys())
async def test_incomplete_exchange_is_closed_at_its_deadline(serve: Any, sent: bytes) -> None:
    """The server closes a connection whose exchange is incomplete at its deadline, whatever was sent."""
    service = await serve(SHORT)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
    writer.write(sent)
    await _closed(reader)
    writer.close()


async def test_slow_bytes_do_not_prolong_an_exchange(serve: Any) -> None:
    """A header that never ends, sent byte by byte, is closed at the deadline of the exchange."""
    service = await serve(SHORT)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")

    async def drip() -> None:
        while True:
            writer.write(b"a")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    try:
        await _closed(reader)
    finally:
        dripping.cancel()
        writer.close()


async def test_unread_response_is_closed(serve: Any) -> None:
    """A client that requests page after page and reads none is disconnected, with its pending output."""
    service = await serve(SHORT)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, ("127.0.0.1", service.http_port))

        async def ask_on() -> None:
            while True:
                await loop.sock_sendall(peer, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)

        with pytest.raises(OSError):  # noqa: PT011  # reset or broken pipe, depending on the moment
            async with asyncio.timeout(PATIENCE):
                await ask_on()
    assert await _dropped(service, "slow") == 1


async def test_endless_header_is_refused(serve: Any) -> None:
    """A header longer than 16 KiB gets a 400, however fast it comes, and the connection is closed."""
    service = await serve(ConnectionLimits(exchange=60))
    reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"a" * 40_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    await _closed(reader)
    writer.close()


CHUNKED = b"POST /%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"healthz", b"nowhere"])
async def test_body_in_tiny_pieces_is_closed_at_once(serve: Any, path: bytes) -> None:
    """Chunks of one byte are refused after some hundred of them, and not read until the deadline."""
    service = await serve(ConnectionLimits(exchange=600))
    reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
    writer.write(CHUNKED % path + b"1\r\nx\r\n" * 2_000)
    await _closed(reader)
    writer.close()
    assert await _healthy(service)


async def test_body_in_usual_pieces_is_read(serve: Any) -> None:
    """A small body byte by byte, and a large one in usual chunks, get their response."""
    service = await serve(ConnectionLimits(exchange=600))
    for pieces in (b"1\r\nx\r\n" * 64, b"200\r\n" + b"x" * 512 + b"\r\n", (b"80\r\n" + b"x" * 128 + b"\r\n") * 500):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
        writer.write(CHUNKED % b"nowhere" + pieces + b"0\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()


async def test_invalid_rest_of_an_answered_request_closes_its_connection_alone(serve: Any) -> None:
    """Bytes after a response that are no request end the connection; they are counted, without a traceback."""
    service = await serve(ConnectionLimits(exchange=600))
    reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
    writer.write(CHUNKED % b"nowhere" + b"1\r\nx\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    writer.write(b"no chunk\r\n")
    await _closed(reader)
    writer.close()
    assert await _dropped(service, "invalid") == 1


async def test_oldest_stalled_connections_are_closed_for_new_ones(serve: Any) -> None:
    """With more connections than the limit, the oldest are closed and a new one gets its response."""
    service = await serve(FEW)
    held = [await _half(service) for _ in range(3 * FEW.maximum)]
    assert await _healthy(service)
    for reader, _ in held[: 2 * FEW.maximum]:
        await _closed(reader)
    for _, writer in held:
        writer.close()


async def test_idle_connections_are_closed_for_new_ones(serve: Any) -> None:
    """Many idle keep-alive connections do not prevent a new one either."""
    service = await serve(FEW)
    async with AsyncExitStack() as stack:
        for _ in range(3 * FEW.maximum):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
            stack.callback(writer.close)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await _healthy(service)


async def test_pipelined_requests_are_each_answered(serve: Any) -> None:
    """Pipelined requests are processed in order, and the connection ends at the deadline of the last one."""
    service = await serve(ConnectionLimits(exchange=4))  # so that none of them is late by itself
    reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
    answered = await _closed(reader)
    assert answered.count(b"HTTP/1.1 200") == 200
    writer.close()


class Peer:
    """A connection as the connection table sees it."""

    def __init__(self, closed: list[int], number: int) -> None:
        self.responding = False
        self._closed = closed
        self._number = number

    def abort(self) -> None:
        self._closed.append(self._number)


class Clock:
    """A clock and an event loop that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[Callable[[], None]] = []

    def soon(self, work: Callable[[], None]) -> None:
        self._due.append(work)

    def turn(self) -> None:
        due, self._due = self._due, []
        for work in due:
            work()


def test_young_connection_is_not_closed_first() -> None:
    """Below the maximum no connection is closed before its grace is over: its request may be in transit."""
    clock, closed = Clock(), list[int]()
    limits = ConnectionLimits(usual=2, maximum=4, grace=1)
    table = OpenConnections(limits, lambda: clock.now, clock.soon, lambda _why: None)
    peers: list[Any] = [Peer(closed, number) for number in range(6)]
    for peer in peers[:4]:
        table.opened(peer)
    clock.turn()
    clock.turn()
    assert closed == []
    table.opened(peers[4])
    assert closed == [0]
    clock.turn()
    clock.turn()
    clock.now = 2.0
    table.closed(peers[4])
    table.progressed(peers[1])
    table.opened(peers[5])
    clock.turn()
    clock.turn()
    assert closed == [0, 2, 3]
    assert len(table) == 2


def test_long_response_does_not_end_for_connections_that_ask_nothing() -> None:
    """Above the maximum an idle connection is closed before an older one with a response, and the newest last."""
    clock, closed = Clock(), list[int]()
    table = OpenConnections(ConnectionLimits(usual=2, maximum=2), lambda: clock.now, clock.soon, lambda _why: None)
    peers: list[Any] = [Peer(closed, number) for number in range(5)]
    peers[0].responding = True
    for peer in peers[:4]:
        table.opened(peer)
    assert closed == [1, 2]
    peers[3].responding = True
    table.opened(peers[4])
    assert closed == [1, 2, 0]


def test_pending_request_is_read_before_closing() -> None:
    """A connection that is to be closed, but whose request is read in the same turn, gets its response instead."""
    clock, closed = Clock(), list[int]()
    limits = ConnectionLimits(usual=1, maximum=9, grace=1)
    table = OpenConnections(limits, lambda: clock.now, clock.soon, lambda _why: None)
    peers: list[Any] = [Peer(closed, number) for number in range(3)]
    table.opened(peers[0])
    table.opened(peers[1])
    clock.now = 5.0
    table.opened(peers[2])
    clock.turn()
    peers[0].responding = True
    clock.turn()
    assert closed == [1]


@pytest.mark.parametrize(("descriptors", "most"), [(1024, 256), (20_000, 4096), (16, 8)])
def test_connection_limits_follow_from_the_descriptors(descriptors: int, most: int) -> None:
    """The HTTP server uses at most a quarter of the descriptors; the others are for the broker and sandboxes."""
    limits = ConnectionLimits().within(descriptors)
    assert (limits.maximum, limits.usual) == (most, min(256, most))


async def _half(service: Service) -> Opened:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.http_port)
    writer.write(WAYS["half a header"])
    return reader, writer


async def _healthy(service: Service) -> bool:
    async with (
        ClientSession(timeout=ClientTimeout(PATIENCE)) as web,
        web.get(f"http://127.0.0.1:{service.http_port}/readyz") as answer,
    ):
        return answer.status == 200


async def _dropped(service: Service, why: str) -> float:
    sample = service.registry.get_sample_value("sandherd_http_connections_dropped_total", {"reason": why})
    return sample or 0


async def _closed(reader: asyncio.StreamReader) -> bytes:
    """Read until the server has closed the connection, normally or with a reset."""
    found = b""
    async with asyncio.timeout(PATIENCE):
        try:
            while piece := await reader.read(65536):
                found += piece
        except ConnectionResetError:
            pass
    return found
