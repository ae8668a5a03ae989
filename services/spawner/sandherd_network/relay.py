"""Copies bytes between two TCP connections in both directions, with half-close and backpressure."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from sandherd_network.event_loop import READ, WRITE, EventLoop

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final

_CHUNK_BYTES: Final = 256 * 1024
_MAX_CHUNKS: Final = 8
"""The maximum number of chunks that one direction copies before other directions and connections are served."""
_BUFFER: Final = memoryview(bytearray(_CHUNK_BYTES))
"""A buffer for all connections. It contains no data between two calls of `pump`."""
_LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""A `struct linger` with the timeout 0: closing the socket resets the connection."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 120), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 4))


class RelayDirection:
    """Copies bytes in one direction, from `source` to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.pending = b""
        """Data that was read and that `sink` has not accepted yet. While there is any, nothing more is read."""
        self.ended = False
        """Whether `source` has reached its end."""
        self.finished = False
        """Whether all data was copied and `sink` was shut down for writing."""

    def pump(self) -> None:
        """Copy as much as possible without blocking. Raises `OSError`."""
        for _ in range(_MAX_CHUNKS):
            if (self.pending and not self._flush()) or self.ended:
                break
            try:
                size = self.source.recv_into(_BUFFER)
            except BlockingIOError:
                break
            self.ended = size == 0
            self._send(size)
        if self.ended and not self.pending:
            self._finish()

    def _send(self, size: int) -> None:
        try:
            sent = self.sink.send(_BUFFER[:size]) if size else 0
        except BlockingIOError:
            sent = 0
        self.pending = bytes(_BUFFER[sent:size])

    def _flush(self) -> bool:
        try:
            self.pending = self.pending[self.sink.send(self.pending) :]
        except BlockingIOError:
            return False
        return not self.pending

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            with suppress(OSError):  # its other side has already closed the connection
                self.sink.shutdown(socket.SHUT_WR)


class Relay:
    """Relays between `accepted`, which is connected, and `outgoing`, which still connects.

    `on_closed` is called once, when both are closed.
    """

    def __init__(
        self, loop: EventLoop, accepted: socket.socket, outgoing: socket.socket, on_closed: Callable[[Relay], None]
    ) -> None:
        self._loop, self._on_closed = loop, on_closed
        self._sockets = (accepted, outgoing)
        self._directions = (RelayDirection(accepted, outgoing), RelayDirection(outgoing, accepted))
        self.is_connected = False
        self.last_active = loop.now
        for connection in self._sockets:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        loop.watch(outgoing.fileno(), WRITE, self._on_connected)

    @property
    def is_half_closed(self) -> bool:
        """Whether one side has ended and the other has not."""
        return any(flow.finished for flow in self._directions)

    def abort(self) -> None:
        """Close both connections with a reset, so that neither side mistakes the abort for an orderly end."""
        for connection in self._sockets:
            reset(connection, self._loop)
        self._on_closed(self)

    def _on_connected(self, _events: int) -> None:
        if self._sockets[1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
            return
        self.is_connected = True
        self._on_ready(0)

    def _on_ready(self, events: int) -> None:
        self.last_active = self._loop.now
        try:
            for flow in self._directions:
                flow.pump()
            if events & select.EPOLLERR:
                self._raise_errors()
        except OSError:
            self.abort()
            return
        if all(flow.finished for flow in self._directions):
            self._close()
            return
        for connection in self._sockets:
            self._loop.watch(connection.fileno(), self._interest(connection), self._on_ready)

    def _raise_errors(self) -> None:
        for connection in self._sockets:
            if number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, "a connection was lost")

    def _interest(self, connection: socket.socket) -> int:
        interest = 0
        for flow in self._directions:
            if flow.source is connection and not flow.ended and not flow.pending:
                interest |= READ
            if flow.sink is connection and flow.pending:
                interest |= WRITE
        return interest

    def _close(self) -> None:
        for connection in self._sockets:
            self._loop.unwatch(connection.fileno())
            connection.close()
        self._on_closed(self)


def reset(connection: socket.socket, loop: EventLoop | None = None) -> None:
    """Close a connection so that the other side's next operation fails at once."""
    if loop:
        loop.unwatch(connection.fileno())
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    connection.close()
