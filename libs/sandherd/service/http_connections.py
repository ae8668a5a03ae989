"""Limits the number of connections of a service's HTTP server, and their duration. uvicorn has neither limit.

Every exchange (a complete request and its complete response) has one deadline, whatever delays it: no request, half a
header, half a body, a response that is not read, a connection that is not closed. Above a number of connections, idle
connections are closed, the oldest first, so that new ones, such as those of Kubernetes probes, are always accepted.
"""

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sandherd.telemetry import logs

SLOW_REASON: Final = "slow"
EVICTED_REASON: Final = "evicted"
INVALID_REASON: Final = "invalid"
_DESCRIPTORS_PER_CONNECTION: Final = 4
"""The server may have one connection for this number of file descriptors that the process may open."""
_MAX_SMALL_PIECES: Final = 64
_PIECE_BYTES: Final = 128
"""A body may have `_MAX_SMALL_PIECES` pieces of any size, and one more piece for each `_PIECE_BYTES`. A small piece
costs as much CPU time as a large one, so a body in chunks of one byte would occupy the event loop for seconds."""
_log: Final = logs.get("http_connections")


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one HTTP server. Times are in seconds."""

    usual: int = 256
    """Above this number of connections, those that are idle for longer than `grace` are closed, the oldest first."""
    maximum: int = 4096
    """Maximum number of connections. For each further one, another one is closed, if possible one that is not sending a
    response."""
    grace: float = 4.0
    """Maximum time of an exchange while there are more than `usual` connections."""
    exchange: float = 10.0
    """Maximum time of an exchange."""

    def within(self, descriptors: int) -> "ConnectionLimits":
        """These limits, reduced for a process that may open this number of file descriptors."""
        maximum = min(self.maximum, max(8, descriptors // _DESCRIPTORS_PER_CONNECTION))
        return ConnectionLimits(min(self.usual, maximum), maximum, self.grace, self.exchange)


class OpenConnections:
    """The open connections of one server, ordered by the time at which their current exchange began.

    `now` is a monotonic clock in seconds. `soon` calls a function in the next iteration of the event loop. `dropped` is
    called for each connection that is closed by a limit, with the reason.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        now: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
        dropped: Callable[[str], None],
    ) -> None:
        self.limits = limits
        self._now = now
        self._soon = soon
        self._dropped = dropped
        self._since: dict[BoundedConnection, float] = {}
        self._evicting = False

    def __len__(self) -> int:
        return len(self._since)

    def opened(self, connection: "BoundedConnection") -> None:
        """Add a new connection, and close others if there are too many."""
        self.progressed(connection)
        while len(self._since) > self.limits.maximum:
            self.drop(self._oldest_idle(), EVICTED_REASON)
        if len(self._since) > self.limits.usual and not self._evicting:
            self._evicting = True
            self._soon(self._choose_connections)

    def _oldest_idle(self) -> "BoundedConnection":
        """The oldest connection that is not sending a response, or the oldest of all. Never the newest one.

        Long responses, such as streams of events, are the oldest connections. They must not be closed in favour of a
        new connection, which may never send a request.
        """
        older = list(self._since)[:-1]
        return next((connection for connection in older if not connection.responding), older[0])

    def progressed(self, connection: "BoundedConnection") -> None:
        """Note that a new exchange of the connection begins, which makes it the youngest connection."""
        self._since.pop(connection, None)
        self._since[connection] = self._now()

    def _choose_connections(self) -> None:
        """Choose the connections to close, and close them one iteration of the event loop later.

        On a busy machine, a request may have arrived that is not read yet. It is read before the connection is closed.
        """
        excess = len(self._since) - self.limits.usual
        latest = self._now() - self.limits.grace
        idle = [
            (connection, since)
            for connection, since in self._since.items()
            if since <= latest and not connection.responding
        ]
        self._soon(partial(self._evict, idle[: max(0, excess)]))

    def _evict(self, chosen: "list[tuple[BoundedConnection, float]]") -> None:
        self._evicting = False
        for connection, since in chosen:
            if self._since.get(connection) == since and not connection.responding:
                self.drop(connection, EVICTED_REASON)

    def drop(self, connection: "BoundedConnection", reason: str) -> None:
        """Close a connection at once, even if not all data is sent, and count it by the reason."""
        self.closed(connection)
        self._dropped(reason)
        connection.abort()

    def closed(self, connection: "BoundedConnection") -> None:
        """Remove a connection."""
        self._since.pop(connection, None)


class BoundedBodies(h11.Connection):
    """h11's parser, which refuses a body in pieces that are too small."""

    _pieces = 0
    _bytes = 0

    def next_event(self) -> Any:
        """The next part of a request. Raises `h11.RemoteProtocolError` for an invalid part."""
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _MAX_SMALL_PIECES + self._bytes // _PIECE_BYTES:
                raise h11.RemoteProtocolError("the pieces of a body are too small")
        elif isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        return event


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 connection, with a deadline for each exchange. It is counted in `OpenConnections`.

    It uses h11, because httptools accepts headers of any length.
    """

    def __init__(self, open_connections: OpenConnections, **options: Any) -> None:
        super().__init__(**options)
        self.conn = BoundedBodies(h11.SERVER, self.conn._max_incomplete_event_size)  # noqa: SLF001  # as uvicorn set it
        self._open_connections = open_connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin the first exchange."""
        super().connection_made(transport)
        self._start_deadline()
        self._open_connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the table."""
        self._cancel_deadline()
        self._open_connections.closed(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin the next exchange, before `super()` may read a request that has already arrived."""
        self._start_deadline()
        self._open_connections.progressed(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not a valid request. If a response has begun already, the connection is only closed."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self._open_connections.drop(self, INVALID_REASON)

    @property
    def responding(self) -> bool:
        """Whether a request was received and its response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def abort(self) -> None:
        """Close the connection at once."""
        self._cancel_deadline()
        self.transport.abort()

    def _start_deadline(self) -> None:
        self._cancel_deadline()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(
                self._open_connections.limits.exchange, self._open_connections.drop, self, SLOW_REASON
            )

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def raise_open_files() -> int:
    """Raise the process's soft limit of open files to its hard limit. Returns the resulting limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log.warning("limit of open files not raised", error=repr(error))
    return open_files()


def open_files() -> int:
    """The number of file descriptors that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
