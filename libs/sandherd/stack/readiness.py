"""Whether a service or the database is ready: one request, without a library for it."""

import asyncio
import struct
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT: Final = 5.0
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80_877_103)
"""The shortest message that Postgres answers before a client has named its user (SSLRequest): with one byte."""


async def read_readiness(http: str | None) -> tuple[bool, str]:
    """Whether `/readyz` at this address is green, and its text on each part; red if there is no response."""
    if http is None:
        return False, "no HTTP server yet"
    try:
        async with asyncio.timeout(_TIMEOUT):
            status, body = await _get(http, "/readyz")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        return False, f"{http} does not respond ({type(error).__name__})"
    return status == 200, body.strip()


async def read_database_readiness(sockets: Path) -> str:
    """`ok` if the Postgres with its socket in this directory responds, else the problem."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(sockets / ".s.PGSQL.5432")
            try:
                writer.write(_SSL_REQUEST)
                await reader.readexactly(1)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        return f"does not respond ({type(error).__name__}); see its log, and restart the stack if it hangs"
    return "ok"


async def _get(address: str, path: str) -> tuple[int, str]:
    """Raises `ValueError` for an invalid response, as of a service that is just ending."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        _, _, status = head.partition(b" ")
        return int(status[:3]), body.decode(errors="replace")
    finally:
        writer.close()
