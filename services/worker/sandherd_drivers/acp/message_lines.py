"""The pipes to an agent: one JSON message per line, and any other output of the agent.

The library's own transport ends at a line that is JSON but not a message; here such a line is only output.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024

Json = dict[str, Any]


class MessageLines:
    """The transport of the library's connection. `on_other_output` gets lines that are not messages."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_other_output: Callable[[bytes], None]
    ) -> None:
        self._reader, self._writer = reader, writer
        self._on_other_output = on_other_output
        self.on_written: Callable[[Json], None] | None = None
        """Called with each message after it was written to the pipe."""

    async def send(self, message: Json) -> None:
        """Write a message; returns when the pipe accepts more. Raises `ConnectionError` if it is closed."""
        if self._writer.is_closing():
            raise ConnectionError("the agent's input is closed")
        self._writer.write(json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n")
        await self._writer.drain()
        if self.on_written is not None:
            self.on_written(message)

    async def receive(self) -> Json | None:
        """The next message; None at the end of the input."""
        while line := await self._read_line():
            if (message := read_message(line)) is not None:
                return message
            self._on_other_output(line)
        return None

    async def close(self) -> None:
        """Close the agent's input."""
        self._writer.close()

    async def _read_line(self) -> bytes:
        """The next line with its line feed, or the next piece of a line that is too long.

        At the end of the input it is the rest without a line feed, and then empty.
        """
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as last:
            return last.partial
        except asyncio.LimitOverrunError as error:
            return await self._reader.readexactly(error.consumed)
        except ConnectionError:
            return b""


def read_message(line: bytes) -> Json | None:
    """The message in a line; None if it has none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and _is_valid(message) else None


def _is_valid(message: Json) -> bool:
    """Whether these fields have the types of a JSON-RPC message."""
    method, id, error = message.get("method"), message.get("id"), message.get("error")
    if not (method is None or isinstance(method, str)) or not (id is None or isinstance(id, str | int)):
        return False
    return (method is not None or "id" in message) and (error is None or isinstance(error, dict))
