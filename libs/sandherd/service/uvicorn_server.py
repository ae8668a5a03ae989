"""Runs uvicorn within a service, as a context manager, and without uvicorn's signal handlers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn

MAX_HEADER_BYTES: Final = 16 * 1024
"""Maximum bytes of a request's first line and headers together."""


class HttpServerError(Exception):
    """The HTTP server could not be started."""


@asynccontextmanager
async def serving(config: uvicorn.Config, listening: socket.socket | None = None) -> AsyncIterator[uvicorn.Server]:
    """Serve HTTP until the block ends, at the configured address or on the socket `listening`.

    Raises `HttpServerError` if the port is in use.
    """
    server = _QuietServer(config)
    sockets = None if listening is None else [listening]
    task = asyncio.create_task(server.serve(sockets=sockets), name="http")
    while not server.started:
        if task.done():
            raise HttpServerError(f"could not serve HTTP on {config.host}:{config.port}")
        await asyncio.sleep(0.005)  # uvicorn has no event for its start
    try:
        yield server
    finally:
        server.should_exit = True
        await task


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handling, because the service handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
