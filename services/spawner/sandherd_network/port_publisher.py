"""Ports inside a sandbox that are reached from the host: the agent server's.

The spawner asks at a socket in the run's folder, which no sandbox sees: it sends a port, and gets the port of the
host's loopback address that leads there.
"""

import contextlib
import os
import socket
from typing import Final

from sandherd_network.connections import Connections, begin_connecting
from sandherd_network.loop import READ, Loop
from sandherd_network.namespace import Namespace

_MOST: Final = 16
"""How many ports of one sandbox are open at once; for one more the oldest is closed."""
_LARGEST: Final = 64
_SOCKETS: Final = 32


class Publisher:
    """Listens for the spawner, and for whoever receives the port from it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._listeners: dict[int, socket.socket] = {}
        self._inside: list[socket.socket] = []

    @classmethod
    def listen(cls, path: str) -> "Publisher":
        """Open the socket for the spawner. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108  # of a forwarder that has crashed
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.bind(path)
        control.listen(8)
        return cls(control)

    def serve(self, loop: Loop, connections: Connections, namespace: Namespace) -> None:
        """Answer the spawner from now on. Raises `NamespaceError`."""
        self._loop, self._connections, self._namespace = loop, connections, namespace
        self._control.setblocking(False)
        loop.watch(self._control.fileno(), READ, self._on_caller)

    def _on_caller(self, _events: int) -> None:
        with contextlib.suppress(OSError):
            caller, _ = self._control.accept()
            self._loop.watch(caller.fileno(), READ, lambda _: self._on_request(caller))

    def _on_request(self, caller: socket.socket) -> None:
        self._loop.forget(caller.fileno())
        with caller, contextlib.suppress(OSError, ValueError):
            caller.send(str(self._published(int(caller.recv(_LARGEST)))).encode())

    def _published(self, port: int) -> int:
        listener = self._listeners.get(port) or self._open(port)
        number: int = listener.getsockname()[1]
        return number

    def _open(self, port: int) -> socket.socket:
        if not 0 < port < 65_536:  # ports
            raise ValueError(f"{port} is no port")
        if len(self._listeners) >= _MOST:
            oldest = self._listeners.pop(next(iter(self._listeners)))
            self._loop.forget(oldest.fileno())
            oldest.close()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self._connections.serve(listener, lambda _: self._dial(port))
        self._listeners[port] = listener
        return listener

    def _dial(self, port: int) -> socket.socket:
        if not self._inside:
            self._inside = self._namespace.open_sockets(_SOCKETS)
        return begin_connecting(self._inside.pop(), ("127.0.0.1", port))
