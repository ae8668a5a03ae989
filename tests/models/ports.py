"""Ports of scripted models: a herd declares them before a model listens, as sandboxes reach no other ports.

They are below those that the kernel assigns, and each test process has its own.
"""

import os
import socket
from functools import cache
from typing import Final

_FIRST, _COUNT, _SETS = 20_000, 8, 1_000


@cache
def ports() -> tuple[int, ...]:
    """All ports that the models of this process may use."""
    start = os.getpid() % _SETS
    for turn in range(_SETS):
        first = _FIRST + (start + turn) % _SETS * _COUNT
        found = tuple(range(first, first + _COUNT))
        if all(map(_is_free, found)):
            return found
    raise OSError("no ports are free for models")


def free_port() -> int:
    """A port of these without a listener."""
    return next(port for port in ports() if _is_free(port))


def endpoints() -> str:
    """The ports as `SANDHERD_SANDBOX_ENDPOINTS` names them."""
    return ",".join(f"127.0.0.1:{port}" for port in ports())


DECLARED: Final = "SANDHERD_SANDBOX_ENDPOINTS"


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
