"""Runs uvicorn within a service, as a context manager, and without uvicorn's signal handlers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import uvicorn

from sandherd.concurrency import aligned_delay

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
        server.end()
        await task


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handling, because the service handles signals, and with fewer wakeups.

    uvicorn wakes up ten times per second to find out whether it should end: most of the CPU time of an idle gateway.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Make the server end."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Update the header `Date` once per second, until `end` is called."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(aligned_delay(1)):
                    await self._ending.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
