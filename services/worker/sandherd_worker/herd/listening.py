"""The socket by which an agent's tools reach their worker. Whoever has the attempt's token is answered, and no other.

A call is a connection: `{"token", "tool", "arguments"}` in a line, answered by `{"text", "error"}`. One that is closed
before its answer is not waited for any more.
"""

import asyncio
import hmac
import json
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sandherd.telemetry import logs
from sandherd_worker.tasks import end_tasks

_LONGEST_CALL: Final = 256 * 1024
_log: Final = logs.get("herd")

Use = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Uses a tool with these arguments, and returns what the agent is told."""


class CallRefusedError(Exception):
    """A call that is not done. The agent is told the text."""


class Listening:
    """Listens as soon as it is made, answers from `open` to `close`. Making it raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.token: Final = secrets.token_urlsafe(24)
        self._socket = _listen(path)
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._use: Use

    async def open(self, use: Use) -> None:
        """Answer calls from now on."""
        self._use = use
        self._server = await asyncio.start_unix_server(self._take, sock=self._socket, limit=_LONGEST_CALL)

    async def close(self) -> None:
        """Answer no more; calls that wait are cut off."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        await end_tasks(self._answering)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            # Whatever the agent writes or leaves out is its own affair.
            with suppress(OSError, ValueError, KeyError, TypeError):
                await self._answer(json.loads(await reader.readline()), reader, writer)
        finally:
            self._answering.discard(task)
            writer.close()

    async def _answer(self, call: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not hmac.compare_digest(str(call["token"]).encode(), self.token.encode()):
            return
        using = asyncio.create_task(self._used(str(call["tool"]), dict(call["arguments"])))
        gone = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({using, gone}, return_when=asyncio.FIRST_COMPLETED)
            if using.done():
                writer.write(json.dumps(using.result()).encode() + b"\n")
                await writer.drain()
        finally:
            await end_tasks([using, gone])

    async def _used(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"text": await self._use(tool, arguments), "error": False}
        except CallRefusedError as error:
            return {"text": str(error), "error": True}
        except Exception as error:  # noqa: BLE001  # whoever ends the worker for it says it; the agent only waits here
            _log.warning("a tool of the herd broke", tool=tool, **logs.place(error))
            return {"text": "the worker could not do it", "error": True}


def _listen(path: Path) -> socket.socket:
    """By way of its folder: the kernel takes no name of a socket with more than 107 characters."""
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o600)
        found.listen()
    except BaseException:  # whatever it was, the socket is nobody's
        found.close()
        raise
    finally:
        os.close(folder)
    return found
