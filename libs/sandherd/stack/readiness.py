"""Checks whether a service or the database is ready, by one request and without loading a library."""

import asyncio
import struct
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT_SECONDS: Final = 5.0
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80_877_103)
"""The message SSLRequest, to which Postgres replies with one byte, and which needs no user."""


async def read_readiness(http: str | None) -> tuple[bool, str]:
    """Whether the service at this address is ready, and the text of its `/readyz` or the reason without a response."""
    if http is None:
        return False, "no HTTP server yet"
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            status, body = await _get(http, "/readyz")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        return False, f"{http} does not respond ({type(error).__name__})"
    return status == 200, body.strip()


async def read_database_readiness(sockets: Path) -> str:
    """`ok` if the Postgres whose socket is in this directory responds, else the problem."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
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
    """The status and body of a response. Raises `ValueError` for an invalid one, as of a service that is ending."""
    url = urlsplit(address)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        _, _, status = head.partition(b" ")
        return int(status[:3]), body.decode(errors="replace")
    finally:
        writer.close()
