"""The pipes to an agent: one JSON message a line, and whatever else an agent prints there.

The library's own transport ends at a line that is JSON but no message; here such a line is output, and no more.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

LONGEST_MESSAGE: Final = 32 * 1024 * 1024

Json = dict[str, Any]


class MessageLines:
    """What the library's connection speaks through. `printed` is given what is no message."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, printed: Callable[[bytes], None]
    ) -> None:
        self._reader, self._writer = reader, writer
        self._printed = printed
        self.written: Callable[[Json], None] | None = None
        """Called with each message that the pipe has taken."""

    async def send(self, message: Json) -> None:
        """Write a message; returns when the pipe has room again. Raises `ConnectionError` if nobody reads it."""
        if self._writer.is_closing():
            raise ConnectionError("the agent's input is closed")
        self._writer.write(json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n")
        await self._writer.drain()
        if self.written is not None:
            self.written(message)

    async def receive(self) -> Json | None:
        """The next message; None when there will be none."""
        while line := await self._line():
            if (message := read_message(line)) is not None:
                return message
            self._printed(line)
        return None

    async def close(self) -> None:
        """Let the agent know that nothing will come."""
        self._writer.close()

    async def _line(self) -> bytes:
        """A line with its end; shorter pieces of one that is too long, and of the last; nothing at the end."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as last:
            return last.partial
        except asyncio.LimitOverrunError as error:
            return await self._reader.readexactly(error.consumed)
        except ConnectionError:
            return b""


def read_message(line: bytes) -> Json | None:
    """The message in a line; None if it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and _sound(message) else None


def _sound(message: Json) -> bool:
    method, id, error = message.get("method"), message.get("id"), message.get("error")
    if not (method is None or isinstance(method, str)) or not (id is None or isinstance(id, str | int)):
        return False
    return (method is not None or "id" in message) and (error is None or isinstance(error, dict))
