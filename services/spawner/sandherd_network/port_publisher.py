"""Makes ports inside a sandbox reachable from the host, such as the port of an agent server.

The spawner connects to a Unix socket in the run's folder, which is not visible in a sandbox. It sends the number of a
port inside the sandbox. The reply is the number of a port on the host's loopback address: connections to it are
forwarded to the port inside.
"""

from __future__ import annotations

import contextlib
import os
import socket

from sandherd_network.connections import Connections, start_connect
from sandherd_network.event_loop import READ, EventLoop
from sandherd_network.namespace import Namespace

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final

_MAX_PORTS: Final = 16
"""Maximum published ports of one sandbox. If another port is requested, the one that was published first is closed."""
_MAX_REQUEST_BYTES: Final = 64
_SOCKETS_PER_REFILL: Final = 32
"""The number of sockets that are opened in the sandbox's namespace together, by one forked process."""


class PortPublisher:
    """Handles requests from the spawner, and connections to the published ports."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._listeners: dict[int, socket.socket] = {}
        self._spare_sockets: list[socket.socket] = []

    @classmethod
    def listen(cls, path: str) -> PortPublisher:
        """Open the Unix socket to which the spawner connects. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108  # the socket of a forwarder that crashed
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.bind(path)
        control.listen(8)
        return cls(control)

    def serve(self, loop: EventLoop, connections: Connections, namespace: Namespace) -> None:
        """Begin to reply to requests from the spawner, and to forward connections to published ports."""
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
        if not 0 < port < 65_536:
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
