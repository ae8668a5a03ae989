"""Connections to a broker for which a test writes the CONNECT message itself, as an attacker may."""

import asyncio
import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.keys import Key
from tests.patience import PATIENCE


class RawConnection:
    """One connection: the reader and the writer of its socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: bytes) -> None:
        self._reader, self._writer, self._nonce = reader, writer, nonce

    @classmethod
    async def open(cls, url: str) -> "RawConnection":
        """Open a connection, and send nothing."""
        host, _, port = url.removeprefix("nats://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        return cls(reader, writer, info["nonce"].encode())

    async def connect(self, token: str, key: Key, **fields: Any) -> bytes:
        """Send CONNECT with this token, signed with a key. Returns the broker's next line: PONG if it is accepted."""
        signature = base64.urlsafe_b64encode(key.sign(self._nonce)).decode().rstrip("=")
        connect = {"verbose": False, "protocol": 1, "headers": True, "jwt": token, "sig": signature, **fields}
        return await self.send(f"CONNECT {json.dumps(connect)}\r\nPING\r\n".encode())

    async def send(self, data: bytes) -> bytes:
        """Send these bytes. Returns the next line that is not INFO; it is empty if the connection was closed."""
        with suppress(ConnectionError):
            self._writer.write(data)
            async with asyncio.timeout(PATIENCE):
                while line := await self._reader.readline():
                    if not line.startswith(b"INFO "):
                        return line
        return b""

    async def closed(self) -> None:
        """Wait until the broker has closed the connection."""
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                await self._reader.read()

    async def close(self) -> None:
        """Close the connection after the broker has closed it."""
        with suppress(OSError):
            self._writer.write_eof()
            await self.closed()
        self._writer.close()


def token_and_key(path: Path) -> tuple[str, Key]:
    """The token and the key in a credential file."""
    token, seed = parts_of(path.read_text())
    return token, Key.from_seed(seed)
