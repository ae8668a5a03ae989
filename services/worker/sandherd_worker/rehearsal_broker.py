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
_MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Maximum size of a message, in bytes."""
_STORED_REPLY: Final = b'{"stream":"EVENTS","seq":1}'
"""The reply to a published message, as JetStream sends it for a stored one."""


@asynccontextmanager
async def serving(client: str) -> AsyncIterator[str]:
    """Serve one client on a port of the loopback interface. Yields the server's URL. Raises `OSError`.

    `client` is a part of the client's name. If the sandbox shares the host's loopback interface, other processes can
    connect, too: they are refused. After the client has connected, the port is closed.
    """
    server = await asyncio.start_server(
        lambda reader, writer: _serve(reader, writer, client.encode(), server.close), "127.0.0.1", 0
    )
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: bytes, on_connected: Callable[[], None]
) -> None:
    """Serve the client until it closes its connection (https://docs.nats.io/reference/reference-protocols).

    `on_connected` is called once the client has sent its CONNECT message.
    """
    writer.write(b"INFO %s\r\n" % json.dumps(_INFO).encode())
    subscriptions: dict[bytes, bytes] = {}
    try:
        if client not in await reader.readline():
            return
        on_connected()
        while line := await reader.readline():
            verb, *arguments = line.split()
            if verb == b"PING":
                writer.write(b"PONG\r\n")
            elif verb == b"SUB":
                subscriptions[arguments[0].removesuffix(b"*")] = arguments[-1]
            elif verb in {b"PUB", b"HPUB"}:
                await reader.readexactly(min(int(arguments[-1]), _MAX_MESSAGE_BYTES) + len(b"\r\n"))
                _reply(writer, subscriptions, arguments)
    except (OSError, ValueError, LookupError, asyncio.IncompleteReadError):
        pass  # the connection has failed, or the client is not a worker; the connection is closed
    finally:
        writer.close()


def _reply(writer: asyncio.StreamWriter, subscriptions: dict[bytes, bytes], arguments: list[bytes]) -> None:
    """Acknowledge a message that was published with these arguments: subject, reply subject, sizes."""
    reply_subject = arguments[1]
    subscription = next((sid for prefix, sid in subscriptions.items() if reply_subject.startswith(prefix)), None)
    if subscription is not None:
        writer.write(b"MSG %s %s %d\r\n%s\r\n" % (reply_subject, subscription, len(_STORED_REPLY), _STORED_REPLY))
