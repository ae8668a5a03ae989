"""Accepts the connections of one sandbox within limits, and closes them after timeouts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from sandherd_network.event_loop import READ, EventLoop
from sandherd_network.relay import Relay, reset

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final

MAX_CONNECTIONS: Final = 512
"""Maximum concurrent connections of a sandbox: those that it opens, and those to its published ports. Further
connections are reset."""
_RATE, _BURST = 100.0, 600.0
"""Maximum new connections per second, and maximum burst. Further connections wait, because each one occupies a port of
the host for a minute after its end."""
_CONNECT_TIMEOUT_SECONDS: Final = 15.0
_IDLE_TIMEOUT_SECONDS: Final = 4 * 3600.0
_HALF_CLOSED_TIMEOUT_SECONDS: Final = 900.0
_MAX_ACCEPTS_PER_CALL: Final = 64
_CONNECT_CHECK_SECONDS: Final = 1.0
"""The interval of checks for timeouts while a connection is being opened."""
_IDLE_CHECK_SECONDS: Final = 60.0
"""The interval of checks for timeouts while all connections are open."""

Dial = Callable[[socket.socket], socket.socket | None]
"""Starts the outgoing connection for an accepted connection; None if the policy refuses it. Raises `OSError`."""


class TokenBucket:
    """Token bucket: allows `rate` per second, and a `burst` after idle time."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._updated_at = -1.0, 0.0  # -1: the first `take` fills the bucket

    def take(self, now: float) -> bool:
        """Take a token. Returns False if there is none, so that no further connection is allowed now."""
        self._tokens = (
            self.burst if self._tokens < 0 else min(self.burst, self._tokens + (now - self._updated_at) * self.rate)
        )
        self._updated_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Connections:
    """Accepts connections on any number of sockets, and relays the data."""

    def __init__(self, loop: EventLoop, maximum: int = MAX_CONNECTIONS) -> None:
        self._loop, self._maximum = loop, maximum
        self._relays: set[Relay] = set()
        self._bucket = TokenBucket(_RATE, _BURST)
        self._paused: list[tuple[socket.socket, Dial]] = []
        loop.every_iteration(self._check_timeouts)

    def __len__(self) -> int:
        return len(self._relays)

    def serve(self, listener: socket.socket, dial: Dial) -> None:
        """Accept connections on this socket from now on."""
        listener.setblocking(False)
        self._loop.watch(listener.fileno(), READ, lambda _: self._accept(listener, dial))

    def _accept(self, listener: socket.socket, dial: Dial) -> None:
        for _ in range(_MAX_ACCEPTS_PER_CALL):
            if not self._bucket.take(self._loop.now):
                self._loop.unwatch(listener.fileno())
                self._paused.append((listener, dial))
                return
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                return  # the client has closed it, or no descriptor is free: then it stays in the listener's queue
            self._connect(accepted, dial)

    def _connect(self, accepted: socket.socket, dial: Dial) -> None:
        outgoing = None
        if len(self._relays) < self._maximum:
            with suppress(OSError):
                accepted.setblocking(False)
                outgoing = dial(accepted)
        if outgoing is None:
            reset(accepted)
            return
        self._relays.add(Relay(self._loop, accepted, outgoing, self._relays.discard))

    def _check_timeouts(self) -> float | None:
        """Resume paused listeners, and abort connections that timed out. Returns the seconds until the next check."""
        paused, self._paused = self._paused, []
        for listener, dial in paused:
            self.serve(listener, dial)
        for relay in [relay for relay in self._relays if self._is_timed_out(relay)]:
            relay.abort()
        if paused:
            return 0.1
        if not self._relays:
            return None
        return _CONNECT_CHECK_SECONDS if any(not relay.is_connected for relay in self._relays) else _IDLE_CHECK_SECONDS

    def _is_timed_out(self, relay: Relay) -> bool:
        if not relay.is_connected:
            return self._loop.now - relay.last_active > _CONNECT_TIMEOUT_SECONDS
        limit = _HALF_CLOSED_TIMEOUT_SECONDS if relay.is_half_closed else _IDLE_TIMEOUT_SECONDS
        return self._loop.now - relay.last_active > limit


def connect(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    """Start a connection, without waiting for it. Raises `OSError`."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    return start_connect(connection, address)


def start_connect(connection: socket.socket, address: tuple[str, int]) -> socket.socket:
    """Start a connection with this socket, which is closed on failure. Raises `OSError`."""
    connection.setblocking(False)
    try:
        with suppress(BlockingIOError):
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
