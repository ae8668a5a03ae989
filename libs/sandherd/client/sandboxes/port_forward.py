"""Forwards connections from a loopback port of this machine to a port in a sandbox, through the broker."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.client.events.protocols import HerdConnection
from sandherd.client.retry import request_with_retries
from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import INLINE_BYTES, PortData, PortRead, PortWrite, PortWritten

LOOPBACK: Final = "127.0.0.1"
_CLOSE_SECONDS: Final = 3.0
_NO_PROGRESS_DELAY_SECONDS: Final = 0.05
"""The delay after a reply without progress, because a sandbox may reply at once."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which a close resets the connection. So the peer notices that data is missing."""

Report = Callable[[HerdError], None]
"""A function that is called with the error that ended a connection."""


class PortForward:
    """Accepts connections on the port `local` of this machine, and forwards each to `port` in `sandbox`."""

    def __init__(self, link: HerdConnection, sandbox: str, port: int, report: Report) -> None:
        self.sandbox, self.port = sandbox, port
        self.local = 0
        """The port of this machine's loopback address."""
        self._link, self._report = link, report
        self._running: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, link: HerdConnection, sandbox: str, port: int, *, local: int = 0, report: Report = lambda _error: None
    ) -> AsyncIterator["PortForward"]:
        """Accept connections until the end of the context. `report` is called with the error that ended a connection.

        Raises `HerdError` if the port `local` can't be used; 0 means any free port.
        """
        # The requests are not sent: their validation checks the sandbox's name and the port.
        validated(PortRead, sandbox=checked_name(sandbox, "sandbox"), connection="con-x")
        validated(PortWrite, sandbox=sandbox, connection="con-x", port=port)
        forward = cls(link, sandbox, port, report)
        try:
            server = await asyncio.start_server(forward._accept, LOOPBACK, local, limit=INLINE_BYTES)
        except OSError as error:
            raise HerdError.of(
                Code.UNAVAILABLE,
                f"port {local} of {LOOPBACK} can't be used: {error.strerror or error}",
                field="local",
                remedy=f"name another one, as in `{local + 1}:{port}`, or any free one with `:{port}`",
            ) from None
        forward.local = server.sockets[0].getsockname()[1]
        try:
            yield forward
        finally:
            server.close()
            await cancel_and_wait(forward._running, again_after=2 * _CLOSE_SECONDS)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until both sides have ended it, or one has failed."""
        name = new_name("con")
        directions: list[asyncio.Task[None]] = []
        try:
            await self._write(name, 0, b"")  # opens the connection in the sandbox
            directions = [
                asyncio.create_task(self._send(name, reader)),
                asyncio.create_task(self._receive(name, writer)),
            ]
            await asyncio.gather(*directions)
            writer.close()
        except HerdError as error:
            self._report(error)
        except OSError:
            pass  # the program on this machine has closed the connection
        finally:
            await cancel_and_wait(directions, again_after=SHORT_CLEANUP_SECONDS)
            if not writer.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
            await self._close(name)

    async def _send(self, name: str, reader: asyncio.StreamReader) -> None:
        """Send what the program on this machine writes, as fast as the program in the sandbox reads it."""
        offset = 0
        while data := await reader.read(INLINE_BYTES):
            while data:
                accepted = await self._write(name, offset, data)
                if accepted == offset:
                    await asyncio.sleep(_NO_PROGRESS_DELAY_SECONDS)
                data, offset = data[accepted - offset :], accepted
        while not (await self._request(name, offset, b"", end=True)).ended:  # noqa: ASYNC110  # another process ends it
            await asyncio.sleep(_NO_PROGRESS_DELAY_SECONDS)

    async def _receive(self, name: str, writer: asyncio.StreamWriter) -> None:
        """Write what the program in the sandbox sends, as fast as the program on this machine reads it."""
        offset, ended = 0, False
        while not ended:
            request = PortRead(sandbox=self.sandbox, connection=name, offset=offset)
            reply: PortData = await request_with_retries(self._link, request)
            writer.write(reply.data)
            await writer.drain()
            offset, ended = offset + len(reply.data), reply.ended
            if not reply.data and not ended:
                await asyncio.sleep(_NO_PROGRESS_DELAY_SECONDS)
        if writer.can_write_eof():
            writer.write_eof()

    async def _write(self, name: str, offset: int, data: bytes) -> int:
        """Write data to the connection in the sandbox. Returns the offset after the bytes that were accepted."""
        reply = await self._request(name, offset, data)
        return max(offset, min(reply.accepted, offset + len(data)))

    async def _request(self, name: str, offset: int, data: bytes, *, end: bool = False) -> PortWritten:
        request = PortWrite(sandbox=self.sandbox, connection=name, port=self.port, offset=offset, data=data, end=end)
        reply: PortWritten = await request_with_retries(self._link, request)
        return reply

    async def _close(self, name: str) -> None:
        """Close the connection in the sandbox. If this fails, the worker closes it after `PORT_IDLE_SECONDS`."""
        request = PortWrite(sandbox=self.sandbox, connection=name, port=self.port, close=True)
        with suppress(HerdError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._link.request(request, timeout=_CLOSE_SECONDS)
