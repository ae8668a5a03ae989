"""A call as it goes to the worker: by a socket, one connection for each, so that one which is cut is taken back."""

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

SOCKET: Final = "SANDHERD_HERD_SOCKET"
TOKEN: Final = "SANDHERD_HERD_TOKEN"  # noqa: S105  # the name of a variable
_AWAY: Final = "the worker of this sandbox does not answer"

Answer = tuple[str, bool]
"""What the agent is told, and whether it is an error."""


def call(tool: str, arguments: Mapping[str, Any], begun: Callable[[Callable[[], None]], None]) -> Answer:
    """Ask the worker, and wait for its answer. `begun` is given what cuts the call off."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            _connect(connection, Path(os.environ[SOCKET]))
            begun(lambda: connection.shutdown(socket.SHUT_RDWR))
            request = {"token": os.environ[TOKEN], "tool": tool, "arguments": dict(arguments)}
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline()
        answer = json.loads(line) if line else {"text": _AWAY, "error": True}
        return str(answer["text"]), bool(answer["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return _AWAY, True


def _connect(connection: socket.socket, path: Path) -> None:
    """By way of its folder: the kernel takes no name of a socket with more than 107 characters."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
