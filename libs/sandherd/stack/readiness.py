"""Whether a service says that it is ready: one HTTP question, without a library for it."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT: Final = 2.0


async def ask_ready(http: str | None) -> tuple[bool, str]:
    """Whether `/readyz` at this address is green, and what it says of each part; red if nobody answers."""
    if http is None:
        return False, "no HTTP side yet"
    try:
        async with asyncio.timeout(_TIMEOUT):
            status, body = await _get(http, "/readyz")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        return False, f"{http} does not answer ({type(error).__name__})"
    return status == 200, body.strip()


async def _get(address: str, path: str) -> tuple[int, str]:
    """Raises `ValueError` for what is no answer, as of a service that ends at this moment."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        _, _, said = head.partition(b" ")
        return int(said[:3]), body.decode(errors="replace")
    finally:
        writer.close()
