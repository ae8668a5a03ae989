"""Makes ports inside a sandbox reachable from the host: the agent server's.

The spawner connects to a socket in the run's folder, which no sandbox sees. It sends a port, and receives the port of
the host's loopback address that forwards there.
"""

from __future__ import annotations

import contextlib
import os
import socket

from sandherd_network.connections import Connections, start_connect
from sandherd_network.event_loop import READ, EventLoop
from sandherd_network.namespace import Namespace

TYPE_CHECKING = False  # the module `typing` takes longer to load than what is used of it
if TYPE_CHECKING:
    from typing import Final

_MAX_PORTS: Final = 16
"""Maximum open ports of one sandbox; for another the oldest is closed."""
_MAX_REQUEST_BYTES: Final = 64
_SOCKETS_PER_REFILL: Final = 32


class PortPublisher:
    """Listens for requests of the spawner, and on the published ports."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._listeners: dict[int, socket.socket] = {}
        self._spare_sockets: list[socket.socket] = []

    @classmethod
    def listen(cls, path: str) -> PortPublisher:
        """Open the socket for the spawner. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108  # left by a forwarder that has crashed
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.bind(path)
        control.listen(8)
        return cls(control)

    def serve(self, loop: EventLoop, connections: Connections, namespace: Namespace) -> None:
        """Answer the spawner from now on. Raises `NamespaceError`."""
        self._loop, self._connections, self._namespace = loop, connections, namespace
        self._control.setblocking(False)
        loop.watch(self._control.fileno(), READ, self._on_connection)

    def _on_connection(self, _events: int) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._control.accept()
            self._loop.watch(connection.fileno(), READ, lambda _: self._on_request(connection))

    def _on_request(self, connection: socket.socket) -> None:
        self._loop.unwatch(connection.fileno())
        with connection, contextlib.suppress(OSError, ValueError):
            connection.send(str(self._publish(int(connection.recv(_MAX_REQUEST_BYTES)))).encode())

    def _publish(self, port: int) -> int:
        listener = self._listeners.get(port) or self._open(port)
        number: int = listener.getsockname()[1]
        return number

    def _open(self, port: int) -> socket.socket:
        if not 0 < port < 65_536:  # ports
            raise ValueError(f"{port} is not a valid port")
        if len(self._listeners) >= _MAX_PORTS:
            oldest = self._listeners.pop(next(iter(self._listeners)))
            self._loop.unwatch(oldest.fileno())
            oldest.close()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self._connections.serve(listener, lambda _: self._dial(port))
        self._listeners[port] = listener
        return listener

    def _dial(self, port: int) -> socket.socket:
        if not self._spare_sockets:
            self._spare_sockets = self._namespace.open_sockets(_SOCKETS_PER_REFILL)
        return start_connect(self._spare_sockets.pop(), ("127.0.0.1", port))
