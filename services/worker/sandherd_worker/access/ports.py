"""Forwards connections to ports on this sandbox's own loopback. Requests open, write, read and close them.

The number of bytes that wait for the program or for the client is limited. At the limit the other side has to wait.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests.access import INLINE_BYTES
from sandherd.contracts.requests.ports import (
    MAX_PORT_CONNECTIONS,
    PORT_IDLE_SECONDS,
    PortData,
    PortReadFields,
    PortWriteFields,
    PortWritten,
)

MAX_UNREAD: Final = 2 * INLINE_BYTES
"""Maximum number of bytes from the program that wait until the client has received them."""
_LOOPBACK: Final = ("127.0.0.1", "::1")
_CONNECT_SECONDS: Final = 4.0
_CHUNK_BYTES: Final = 64 * 1024
_RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing a connection resets it."""


class PortConnection:
    """One connection to a program in this sandbox."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.port = port
        self.accepted = 0
        self.requested_at = asyncio.get_running_loop().time()
        self._reader, self._writer = reader, writer
        self._unread = bytearray()
        self._start = 0
        """The position of the first byte in `_unread`."""
        self._at_end = self._end_sent = False
        self._failure: OSError | None = None
        """The error if the program has reset the connection, so that its bytes are incomplete."""
        self._changed = asyncio.Condition()
        self._writing = asyncio.Lock()
        self._reading = asyncio.create_task(self._read_all())

    @property
    def end_sent(self) -> bool:
        """Whether the connection to the program was closed for writing, after all accepted bytes."""
        return self._end_sent

    async def write(self, request: PortWriteFields) -> int:
        """Write the new bytes once the program has read enough. Returns the number of bytes accepted so far."""
        self._record_request()
        async with self._writing:
            if request.offset > self.accepted:
                raise _offset_error(request.offset, self.accepted)
            if not await self._may_write(request.wait_seconds):
                return self.accepted
            new_data = request.data[self.accepted - request.offset :]
            if new_data and self._end_sent:
                raise ContractError(Code.CONFLICT, "data: nothing may follow the end", field="data")
            if new_data:
                self._writer.write(new_data)
                self.accepted += len(new_data)
            if request.end and not self._end_sent and self._writer.can_write_eof():
                self._end_sent = True
                self._writer.write_eof()
            return self.accepted

    async def read(self, offset: int, seconds: float) -> tuple[bytes, bool]:
        """Wait for bytes from `offset` on; return them, and whether the connection has ended after them.

        Raises `ContractError`.
        """
        self._record_request()
        if not self._start <= offset <= self._start + len(self._unread):
            raise _offset_error(offset, self._start + len(self._unread))
        async with self._changed:
            del self._unread[: offset - self._start]
            self._start = offset
            self._changed.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait_for(lambda: bool(self._unread) or self._at_end)
        self._record_request()
        data = bytes(self._unread[:INLINE_BYTES])
        if self._failure and not data:
            raise _closed_error(self.port, str(self._failure))
        return data, self._at_end and not self._failure and len(data) == len(self._unread)

    async def close(self) -> None:
        """Close the connection immediately; by a reset, unless both sides have ended their direction. Idempotent."""
        complete = self._at_end and self._end_sent
        try:
            await cancel_and_wait([self._reading], again_after=SHORT_CLEANUP_SECONDS)
        finally:  # also if the end of the sandbox cancels the timer task that has called this
            if not complete and not self._writer.is_closing():
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._writer.transport.abort()

    def _record_request(self) -> None:
        self.requested_at = asyncio.get_running_loop().time()

    async def _may_write(self, seconds: float) -> bool:
        """Wait until the program has read enough; False if it takes longer. Raises `ContractError` if it was closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        except TimeoutError:
            return False
        except OSError as error:
            raise _closed_error(self.port, str(error)) from error
        if self._writer.is_closing():
            raise _closed_error(self.port, "it was closed")
        return True

    async def _read_all(self) -> None:
        try:
            while data := await self._reader.read(_CHUNK_BYTES):
                async with self._changed:
                    self._unread += data
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: len(self._unread) < MAX_UNREAD)
        except OSError as error:
            self._failure = error
        async with self._changed:
            self._at_end = True
            self._changed.notify_all()


class PortConnections:
    """Handles requests about forwarded connections."""

    def __init__(self, idle_seconds: float = PORT_IDLE_SECONDS) -> None:
        self._idle = idle_seconds
        self._open: dict[str, asyncio.Task[PortConnection]] = {}
        self._expiry: asyncio.Task[None] | None = None

    async def write(self, request: PortWriteFields) -> PortWritten:
        """Open a connection if it is new, and write to it. Raises `ContractError`."""
        name = request.connection
        if request.close:
            await self._close(name)
            return PortWritten(connection=name, accepted=request.offset)
        if name not in self._open and request.offset == 0:
            self._start_connecting(name, request.port)
        connection = await self._find(name)
        accepted = await connection.write(request)
        return PortWritten(connection=name, accepted=accepted, ended=connection.end_sent)

    async def read(self, request: PortReadFields) -> PortData:
        """The next bytes from a connection. Raises `ContractError`."""
        connection = await self._find(request.connection)
        data, ended = await connection.read(request.offset, request.wait_seconds)
        return PortData(connection=request.connection, data=data, ended=ended)

    async def close(self) -> None:
        """Close all connections."""
        if self._expiry is not None:
            await cancel_and_wait([self._expiry], again_after=SHORT_CLEANUP_SECONDS)
        for name in list(self._open):
            await self._close(name)

    def _start_connecting(self, name: str, port: int) -> None:
        if len(self._open) >= MAX_PORT_CONNECTIONS:
            raise ContractError(
                Code.CONFLICT,
                f"{MAX_PORT_CONNECTIONS} connections to this sandbox are open, which is the limit",
                field="connection",
                remedy="close one of them",
            )
        self._open[name] = asyncio.create_task(_connect(port))
        if self._expiry is None or self._expiry.done():
            self._expiry = asyncio.create_task(self._close_idle())

    async def _find(self, name: str) -> PortConnection:
        opening = self._open.get(name)
        if opening is None:
            raise ContractError(Code.NOT_FOUND, f"there is no connection {name}, or it was closed", field="connection")
        try:
            return await asyncio.shield(opening)
        except ContractError:
            self._open.pop(name, None)
            raise

    async def _close(self, name: str) -> None:
        opening = self._open.pop(name, None)
        if opening is None:
            return
        try:
            await cancel_and_wait([opening], again_after=SHORT_CLEANUP_SECONDS)
        finally:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().close()

    async def _close_idle(self) -> None:
        while self._open:
            await asyncio.sleep(self._idle / 4)
            now = asyncio.get_running_loop().time()
            for name, opening in list(self._open.items()):
                if opening.done() and _is_idle(opening, now - self._idle):
                    await self._close(name)


def _is_idle(opening: "asyncio.Task[PortConnection]", since: float) -> bool:
    failed = opening.cancelled() or opening.exception() is not None
    return failed or opening.result().requested_at < since


async def _connect(port: int) -> PortConnection:
    """Connect to the sandbox's own loopback, and to nothing else. Raises `ContractError` if nothing listens there."""
    error: Exception | None = None
    for address in _LOOPBACK:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS / len(_LOOPBACK)):
                return PortConnection(port, *await asyncio.open_connection(address, port, limit=_CHUNK_BYTES))
        except (OSError, TimeoutError) as failed:
            error = error or failed
    raise ContractError(
        Code.CONFLICT,
        f"nothing accepts connections on port {port} of the sandbox's loopback: {error}",
        field="port",
        remedy="start a server there that listens on 127.0.0.1 or on all addresses",
    )


def _offset_error(offset: int, known: int) -> ContractError:
    return ContractError(Code.CONFLICT, f"offset: {offset}, but {known} bytes were exchanged before", field="offset")


def _closed_error(port: int, how: str) -> ContractError:
    return ContractError(Code.CONFLICT, f"the connection to port {port} was closed in the sandbox: {how}", field="port")
