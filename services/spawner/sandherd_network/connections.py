"""All connections of one sandbox: accepted within limits, closed when nothing happens on them for too long."""

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sandherd_network.loop import READ, Loop
from sandherd_network.relay import Relay, reset

MOST: Final = 512
"""How many connections a sandbox may have at once, in both directions together; further ones are reset."""
_RATE, _BURST = 100.0, 600.0
"""How many new ones a second it may make, for ever and at once; further ones wait. Each holds a port of the host for a
minute after its end."""
_CONNECT_SECONDS: Final = 15.0
_IDLE_SECONDS: Final = 4 * 3600.0
_HALF_CLOSED_SECONDS: Final = 900.0
_ACCEPTED_AT_ONCE: Final = 64
_LOOK: Final = 1.0
_LOOK_IDLE: Final = 60.0

Dial = Callable[[socket.socket], socket.socket | None]
"""From an accepted connection to one that is being made; None: it is refused. Raises `OSError`."""


@dataclass
class Bucket:
    """Allows `rate` a second, and `burst` at once after a rest."""

    rate: float
    burst: float
    _left: float = -1.0
    _at: float = 0.0

    def take(self, now: float) -> bool:
        """Whether one more is allowed now."""
        self._left = self.burst if self._left < 0 else min(self.burst, self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Connections:
    """Accepts at any number of sockets, and copies what comes."""

    def __init__(self, loop: Loop, most: int = MOST) -> None:
        self._loop, self._most = loop, most
        self._relays: set[Relay] = set()
        self._bucket = Bucket(_RATE, _BURST)
        self._paused: list[tuple[socket.socket, Dial]] = []
        loop.every_round(self._tick)

    def __len__(self) -> int:
        return len(self._relays)

    def serve(self, listener: socket.socket, dial: Dial) -> None:
        """Accept here from now on."""
        listener.setblocking(False)
        self._loop.watch(listener.fileno(), READ, lambda _: self._accept(listener, dial))

    def _accept(self, listener: socket.socket, dial: Dial) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if not self._bucket.take(self._loop.now):
                self._loop.forget(listener.fileno())
                self._paused.append((listener, dial))
                return
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                return  # it was gone before, or there is no descriptor for it now: it stays in the queue
            self._connect(accepted, dial)

    def _connect(self, accepted: socket.socket, dial: Dial) -> None:
        outgoing = None
        if len(self._relays) < self._most:
            with suppress(OSError):
                accepted.setblocking(False)
                outgoing = dial(accepted)
        if outgoing is None:
            reset(accepted)
            return
        self._relays.add(Relay(self._loop, accepted, outgoing, self._relays.discard))

    def _tick(self) -> float | None:
        paused, self._paused = self._paused, []
        for listener, dial in paused:
            self.serve(listener, dial)
        for relay in [relay for relay in self._relays if self._too_old(relay)]:
            relay.abort()
        if paused:
            return 0.1
        if not self._relays:
            return None
        return _LOOK if any(not relay.connected for relay in self._relays) else _LOOK_IDLE

    def _too_old(self, relay: Relay) -> bool:
        if not relay.connected:
            return self._loop.now - relay.touched > _CONNECT_SECONDS
        limit = _HALF_CLOSED_SECONDS if relay.half_closed else _IDLE_SECONDS
        return self._loop.now - relay.touched > limit


def connecting(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    """A socket that is being connected. Raises `OSError`."""
    one = socket.socket(family, socket.SOCK_STREAM)
    return begin_connecting(one, address)


def begin_connecting(one: socket.socket, address: tuple[str, int]) -> socket.socket:
    """The same with a socket that is there. It is closed if that fails. Raises `OSError`."""
    one.setblocking(False)
    try:
        with suppress(BlockingIOError):
            one.connect(address)
    except OSError:
        one.close()
        raise
    return one
