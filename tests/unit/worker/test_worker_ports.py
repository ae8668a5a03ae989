"""Forwarded connections in a worker: each byte once, bounded buffers on both sides, and closed without requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import INLINE_BYTES, MAX_PORT_CONNECTIONS, WorkerPortRead, WorkerPortWrite
from sandherd_worker.access.ports import MAX_UNREAD, PortConnections
from tests.patience import PATIENCE

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


class PortServer:
    """A server of a sandbox, and requests about connections to it."""

    def __init__(self) -> None:
        self.ports = PortConnections()
        self.port = 0
        self.accepted: list[asyncio.StreamWriter] = []
        self.handling: list[asyncio.Future[None]] = []

    async def write(self, data: bytes = b"", offset: int = 0, name: str = "con-1", **more: Any) -> int:
        request = WorkerPortWrite(connection=name, port=self.port, offset=offset, data=data, **more)
        return (await self.ports.write(request)).accepted

    async def read(self, offset: int = 0, name: str = "con-1", seconds: float = 5.0) -> tuple[bytes, bool]:
        found = await self.ports.read(WorkerPortRead(connection=name, offset=offset, wait_seconds=seconds))
        return found.data, found.ended


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handle], Any]]:
    port_servers: list[tuple[PortServer, asyncio.Server]] = []

    async def start(handle: Handle) -> PortServer:
        port_server = PortServer()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            port_server.accepted.append(writer)
            port_server.handling.append(asyncio.ensure_future(asyncio.current_task()))  # type: ignore[arg-type]  # in a task
            with suppress(OSError):
                await handle(reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1024)
        port_server.port = server.sockets[0].getsockname()[1]
        port_servers.append((port_server, server))
        return port_server

    yield start
    for port_server, server in port_servers:
        await port_server.ports.close()
        for writer in port_server.accepted:
            writer.transport.abort()
        await asyncio.gather(*port_server.handling)
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1024):
        writer.write(data)
    writer.close()


async def ignore(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """A server that reads nothing."""
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio would read up to its limit


async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that sends without end."""
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def test_repeated_requests_write_and_return_the_same_bytes_once(serve: Callable[[Handle], Any]) -> None:
    """After a lost reply each request is sent again."""
    port_server = await serve(echo)
    assert await port_server.write(b"he") == 2
    assert await port_server.write(b"hello") == 5
    found = b""
    while len(found) < 5:
        data, _ = await port_server.read(len(found))
        again, _ = await port_server.read(len(found))
        assert again.startswith(data)
        found += again
    assert found == b"hello"
    await port_server.write(offset=5, end=True)
    await port_server.write(offset=5, end=True)
    assert await port_server.read(5) == (b"", True)
    with pytest.raises(ContractError, match="nothing may follow the end"):
        await port_server.write(b"more", offset=5)


async def test_server_that_reads_nothing_holds_the_client_up(serve: Callable[[Handle], Any]) -> None:
    """A write that is not accepted changes nothing, and is repeated by the client."""
    port_server = await serve(ignore)
    sent = 0
    async with asyncio.timeout(PATIENCE):
        while (accepted := await port_server.write(b"x" * INLINE_BYTES, sent, wait_seconds=0.2)) > sent:
            sent = accepted
    assert await port_server.write(b"x", sent, wait_seconds=0) == sent


async def test_end_is_accepted_once_the_server_has_read_what_precedes_it(serve: Callable[[Handle], Any]) -> None:
    """An end that waits behind unread bytes is not accepted, and repeated by the client; the server then gets it."""
    go, complete = asyncio.Event(), asyncio.Event()

    async def read_late(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio would read up to its limit
        await go.wait()
        reader._transport.resume_reading()  # type: ignore[attr-defined]  # see above
        while await reader.read(65536):
            pass
        complete.set()

    port_server = await serve(read_late)
    sent = 0
    async with asyncio.timeout(PATIENCE):
        while (accepted := await port_server.write(b"x" * INLINE_BYTES, sent, wait_seconds=0.2)) > sent:
            sent = accepted
        end = WorkerPortWrite(connection="con-1", port=port_server.port, offset=sent, end=True, wait_seconds=0)
        assert not (await port_server.ports.write(end)).ended
        go.set()
        while not (await port_server.ports.write(end)).ended:
            await asyncio.sleep(0.01)
        await complete.wait()


async def test_client_that_reads_nothing_holds_the_server_up(serve: Callable[[Handle], Any]) -> None:
    """At most `MAX_UNREAD` and a piece are held, however much the server sends."""
    port_server = await serve(flood)
    await port_server.write()
    connection = port_server.ports._open["con-1"].result()
    async with asyncio.timeout(PATIENCE):
        while len(connection._unread) < MAX_UNREAD:
            await asyncio.sleep(0)
    assert len((await port_server.read())[0]) == INLINE_BYTES
    assert len(connection._unread) < MAX_UNREAD + 65536


async def test_reset_is_an_error_and_no_end(serve: Callable[[Handle], Any]) -> None:
    """If the server resets the connection, the client gets an error, and not an end after incomplete bytes."""
    port_server = await serve(echo)
    await port_server.write(b"x")
    assert (await port_server.read())[0] == b"x"
    port_server.accepted[0].transport.get_extra_info("socket").setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER
    port_server.accepted[0].transport.abort()
    with pytest.raises(ContractError, match="closed in the sandbox"):
        await port_server.read(1)


async def test_connection_without_requests_is_closed(serve: Callable[[Handle], Any]) -> None:
    """A connection without requests is closed, so that a killed client leaves nothing open."""
    port_server = await serve(echo)
    port_server.ports = PortConnections(idle_seconds=0.2)
    await port_server.write()
    async with asyncio.timeout(PATIENCE):
        while port_server.ports._open:  # its own timer closes it
            await asyncio.sleep(0.05)
    with pytest.raises(ContractError) as refused:
        await port_server.read()
    assert refused.value.problem.code is Code.NOT_FOUND


async def test_connections_are_limited_and_closed_ones_make_room(serve: Callable[[Handle], Any]) -> None:
    """A connection beyond the maximum is refused. A repeated request to open a connection does not count again."""
    port_server = await serve(echo)
    for number in range(MAX_PORT_CONNECTIONS):
        await port_server.write(name=f"con-{number}")
        await port_server.write(name=f"con-{number}")
    with pytest.raises(ContractError, match="limit"):
        await port_server.write(name="con-more")
    await port_server.write(name="con-0", close=True)
    assert await port_server.write(name="con-more") == 0
    async with asyncio.timeout(PATIENCE):
        while (
            len(port_server.accepted) < MAX_PORT_CONNECTIONS + 1
        ):  # one that is accepted after the test would outlive it
            await asyncio.sleep(0.01)
    assert len(port_server.accepted) == MAX_PORT_CONNECTIONS + 1
