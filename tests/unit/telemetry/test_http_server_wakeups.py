"""A service's HTTP server wakes up once per second to update the header `Date`, and ends without waiting for it."""

import asyncio
from typing import Any

import pytest
import uvicorn

from sandherd.service import uvicorn_server


async def application(scope: Any, _receive: Any, send: Any) -> None:
    """An empty page."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@pytest.fixture
def config() -> uvicorn.Config:
    """A server on a free port."""
    return uvicorn.Config(application, host="127.0.0.1", port=0, log_config=None, lifespan="off")


async def response_headers(server: uvicorn.Server) -> bytes:
    """The headers of a response."""
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()


async def test_server_ends_without_its_timer(config: uvicorn.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no other timer: here the next update of the header is after an hour, and the first was at the start."""
    monkeypatch.setattr(uvicorn_server, "aligned_delay", lambda interval: 3600 * interval)
    async with uvicorn_server.serving(config) as server:
        headers = await response_headers(server)
    assert b"\r\ndate: " in headers


async def test_date_is_updated(config: uvicorn.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a response is not that of the start."""
    monkeypatch.setattr(uvicorn_server, "aligned_delay", lambda interval: 0.001 * interval)
    async with uvicorn_server.serving(config) as server:
        monkeypatch.setattr("uvicorn.server.time.time", lambda: 0.0)
        while b"date: Thu, 01 Jan 1970 00:00:00 GMT" not in await response_headers(server):
            pass
