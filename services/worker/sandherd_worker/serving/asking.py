"""Asking a server on this host whether it is well, and for a port that is free for it."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_WELL: Final = b" 200 "
_LONGEST: Final = 64


async def well(port: int, path: str, seconds: float) -> bool:
    """Whether it answers with 200 within so many seconds."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            return await _ask(port, path)
    return False


async def _ask(port: int, path: str) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return _WELL in (await reader.read(_LONGEST)).partition(b"\r\n")[0]
    finally:
        writer.close()


def free_port(host: str = "127.0.0.1", among: Sequence[int] = ()) -> int:
    """A port that nobody listens on, one of these if there are any. Raises `OSError` where all of them are taken.

    Somebody else may take it first: then the server ends, and gets another.
    """
    for wanted in among or (0,):
        with suppress(OSError), socket.socket() as one:
            # As servers do it: what is only left over from one that has ended keeps nobody out.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, wanted))
            port: int = one.getsockname()[1]
            return port
    raise OSError(f"no port is free of those at which it would be reached: {', '.join(map(str, among)) or 'any'}")
