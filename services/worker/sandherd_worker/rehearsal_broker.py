"""A minimal NATS server for one client: it accepts what a worker sends at its start, and replies as a herd does."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_INFO: Final = {
    "server_id": "rehearsal",
    "version": "2.12.0",
    "proto": 1,
    "headers": True,
    "max_payload": 1024 * 1024,
    "auth_required": True,
    "nonce": "rehearsal",
}
_MAX_BYTES: Final = 64 * 1024
"""Maximum size of a message."""
_STORED: Final = b'{"stream":"EVENTS","seq":1}'


@asynccontextmanager
async def serving(client: str) -> AsyncIterator[str]:
    """Serve the client whose name contains this, on a port of the loopback interface; its URL. Raises `OSError`.

    Where that interface is the host's, other processes can connect, too: they are refused, and after the client has
    connected nothing can connect.
    """
    server = await asyncio.start_server(
        lambda reader, writer: _serve(reader, writer, client.encode(), server.close), "127.0.0.1", 0
    )
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: bytes, admitted: Callable[[], None]
) -> None:
    """Serve the client until it closes its connection (https://docs.nats.io/reference/reference-protocols).

    `admitted` is called when it has connected.
    """
    writer.write(b"INFO %s\r\n" % json.dumps(_INFO).encode())
    subscriptions: dict[bytes, bytes] = {}
    try:
        if client not in await reader.readline():
            return
        admitted()
        while line := await reader.readline():
            verb, *arguments = line.split()
            if verb == b"PING":
                writer.write(b"PONG\r\n")
            elif verb == b"SUB":
                subscriptions[arguments[0].removesuffix(b"*")] = arguments[-1]
            elif verb in {b"PUB", b"HPUB"}:
                await reader.readexactly(min(int(arguments[-1]), _MAX_BYTES) + len(b"\r\n"))
                _reply(writer, subscriptions, arguments)
    except (OSError, ValueError, LookupError, asyncio.IncompleteReadError):
        pass  # the connection has failed, or the client is not a worker: it is closed
    finally:
        writer.close()


def _reply(writer: asyncio.StreamWriter, subscriptions: dict[bytes, bytes], arguments: list[bytes]) -> None:
    """Acknowledge a message that was published with these arguments: subject, reply subject, sizes."""
    reply_subject = arguments[1]
    subscription = next((sid for prefix, sid in subscriptions.items() if reply_subject.startswith(prefix)), None)
    if subscription is not None:
        writer.write(b"MSG %s %s %d\r\n%s\r\n" % (reply_subject, subscription, len(_STORED), _STORED))
