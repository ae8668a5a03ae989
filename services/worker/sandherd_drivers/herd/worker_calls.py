"""A call to the worker over a socket: one connection per call, so that closing it cancels the call."""

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

SOCKET_VARIABLE: Final = "SANDHERD_HERD_SOCKET"
TOKEN_VARIABLE: Final = "SANDHERD_HERD_TOKEN"  # noqa: S105  # the name of a variable
_UNAVAILABLE: Final = "the worker of this sandbox does not respond"

Reply = tuple[str, bool]
"""The text for the agent, and whether it is an error."""


def call(tool: str, arguments: Mapping[str, Any], register_cancel: Callable[[Callable[[], None]], None]) -> Reply:
    """Call the worker, and wait for its reply. `register_cancel` gets a function that cancels the call."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            _connect(connection, Path(os.environ[SOCKET_VARIABLE]))
            register_cancel(lambda: connection.shutdown(socket.SHUT_RDWR))
            request = {"token": os.environ[TOKEN_VARIABLE], "tool": tool, "arguments": dict(arguments)}
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as replies:
                line = replies.readline()
        reply = json.loads(line) if line else {"text": _UNAVAILABLE, "error": True}
        return str(reply["text"]), bool(reply["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return _UNAVAILABLE, True


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect by a short path through the socket's folder, because the kernel limits the path to 107 characters."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
