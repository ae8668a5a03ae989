"""The socket by which an agent's tools reach their worker. Only callers with the attempt's token get a reply.

A call is a connection: `{"token", "tool", "arguments"}` on one line; the reply is `{"text", "error"}`. A call whose
connection is closed before the reply is cancelled.
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

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.telemetry import logs

_LONGEST_CALL: Final = 256 * 1024
_log: Final = logs.get("tool_socket")

Use = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Runs a tool with these arguments, and returns the text for the agent."""


class CallRefusedError(Exception):
    """A call that is refused. The agent gets the text."""


class ToolSocket:
    """Accepts connections as soon as it is created, replies from `open` to `close`. Creating it raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.token: Final = secrets.token_urlsafe(24)
        self._socket = _listen(path)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._use: Use

    async def open(self, use: Use) -> None:
        """Reply to calls from now on."""
        self._use = use
        self._server = await asyncio.start_unix_server(self._accept, sock=self._socket, limit=_LONGEST_CALL)

    async def close(self) -> None:
        """Stop replying; pending calls are cut off."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        await cancel_and_wait(self._serving, again_after=SHORT_CLEANUP_SECONDS)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            # Invalid input from the agent affects only its own call.
            with suppress(OSError, ValueError, KeyError, TypeError):
                await self._reply(json.loads(await reader.readline()), reader, writer)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _reply(self, call: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not hmac.compare_digest(str(call["token"]).encode(), self.token.encode()):
            return
        using = asyncio.create_task(self._run_tool(str(call["tool"]), dict(call["arguments"])))
        disconnected = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({using, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if using.done():
                writer.write(json.dumps(using.result()).encode() + b"\n")
                await writer.drain()
        finally:
            await cancel_and_wait([using, disconnected], again_after=SHORT_CLEANUP_SECONDS)

    async def _run_tool(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"text": await self._use(tool, arguments), "error": False}
        except CallRefusedError as error:
            return {"text": str(error), "error": True}
        except Exception as error:  # noqa: BLE001  # an error that ends the worker is reported elsewhere; here only the agent waits
            _log.warning("herd tool failed", tool=tool, **logs.error_fields(error))
            return {"text": "the call failed in the worker", "error": True}


def _listen(path: Path) -> socket.socket:
    """Create the listening socket by a short path through its folder: the kernel limits it to 107 characters."""
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o600)
        found.listen()
    except BaseException:  # raised again; the socket must not leak
        found.close()
        raise
    finally:
        os.close(folder)
    return found
