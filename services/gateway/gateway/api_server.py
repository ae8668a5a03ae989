"""The HTTP server of the API: uvicorn with the deadlines of `sandherd.service.http_connections`, and its own port."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from sandherd.private_files import write_file
from sandherd.service.http_connections import BoundedConnection, ConnectionLimits, OpenConnections, open_files
from sandherd.service.uvicorn_server import MAX_HEADER_BYTES, HttpServerError, serving

CONNECTION: Final = "sandherd.connection"
"""The key of a request's connection in its ASGI scope."""
SOCKET: Final = "sandherd.socket"
"""The key of a WebSocket's connection in its ASGI scope."""
MAX_MESSAGE: Final = 64 * 1024
"""Maximum size of a message from the client of a WebSocket, in bytes."""
_EXCHANGE_SECONDS: Final = 20.0
"""Maximum seconds for a request and its response. Streams of events have no such limit."""
_PING_SECONDS: Final = 20.0
"""Seconds between two pings of a WebSocket, and maximum seconds until the reply to a ping."""


class ApiConnection(BoundedConnection):
    """A connection that the handler of a request can access to change the deadline of the response."""

    def __init__(self, open_connections: OpenConnections, **options: Any) -> None:
        super().__init__(open_connections, **options)
        self.on_lost: Callable[[], object] | None = None
        application = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope[CONNECTION] = self
            await application(scope, receive, send)

        self.app = with_connection

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the WebSocket, which has limits of its own."""
        self._cancel_deadline()
        self._open_connections.closed(self)
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the stream of events that is open, if any."""
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    @property
    def is_full(self) -> bool:
        """Whether sending has to wait until the client reads."""
        return bool(self.flow.write_paused)

    def stay_open(self, on_lost: Callable[[], object]) -> None:
        """Remove the deadline until the response is complete, because it is a stream of events.

        `on_lost` is called when the client disconnects, or immediately if it has already disconnected.
        """
        self._cancel_deadline()
        self.on_lost = on_lost
        if self.transport.is_closing():
            on_lost()

    def extend(self, seconds: float) -> None:
        """Set the deadline of this response to `seconds` from now."""
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self.abort)


class SocketConnection(WSProtocol):
    """A connection of a WebSocket that its handler can close immediately, even if the client does not read."""

    def handle_connect(self, event: Any) -> None:
        """Handle the request that opens the WebSocket."""
        application = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope[SOCKET] = self
            await application(scope, receive, send)

        self.app = with_connection
        super().handle_connect(event)

    def abort(self) -> None:
        """Close the connection immediately."""
        self.transport.abort()


class ApiServer:
    """Serves an ASGI application. `on_drop` is called with the reason if a connection is closed because of a limit."""

    def __init__(self, application: Any, on_drop: Callable[[str], None]) -> None:
        self.port = 0
        self._application = application
        self._on_drop = on_drop

    @asynccontextmanager
    async def open(self, host: str, port: int, port_file: Path | None) -> AsyncIterator[None]:
        """Serve within the context. Raises `HttpServerError` if the port is in use."""
        server_socket = _listen(host, port, port_file)
        self.port = server_socket.getsockname()[1]
        async with serving(self._config(), server_socket):
            if port_file is not None:
                write_file(port_file, str(self.port))
            yield

    def _config(self) -> uvicorn.Config:
        loop = asyncio.get_running_loop()
        limits = ConnectionLimits(usual=2048, exchange=_EXCHANGE_SECONDS).within(open_files())
        open_connections = OpenConnections(limits, loop.time, loop.call_soon, self._on_drop)
        return uvicorn.Config(
            self._application,
            http=partial(ApiConnection, open_connections),  # type: ignore[arg-type]  # only called, as a class would be
            ws=SocketConnection,
            ws_max_size=MAX_MESSAGE,
            ws_ping_interval=_PING_SECONDS,
            ws_ping_timeout=_PING_SECONDS,
            ws_per_message_deflate=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            log_config=None,
            access_log=False,
        )


def _listen(host: str, port: int, port_file: Path | None) -> socket.socket:
    """A listening socket. If `port` is 0, it uses the port of the last start, or else any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [] if port else _last_port(port_file):
        with suppress(OSError):
            return socket.create_server((host, number), family=family)
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise HttpServerError(f"could not serve the API on {host}:{port}: {error}") from error


def _last_port(port_file: Path | None) -> list[int]:
    with suppress(OSError, ValueError):
        return [int(port_file.read_text())] if port_file is not None else []
    return []
