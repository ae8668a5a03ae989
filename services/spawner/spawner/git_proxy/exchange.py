"""A request to the proxy and its response, over ASGI. Their size and the time between two parts are limited."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import IO, Any, Final

from spawner.git_proxy.push_protocol import LENGTH_BYTES, ProtocolError, content_length

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's function that returns the next message of a request."""
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
"""ASGI's function that sends a message of the response."""
_GZIP_WINDOW_BITS: Final = 16 + zlib.MAX_WBITS
_PIECE_BYTES: Final = 256 * 1024
"""Maximum bytes that are decompressed at once."""
_IDLE_SECONDS: Final = 60.0
"""Maximum time until the next part of a body is received, and until a part of the response is sent."""


class HttpError(Exception):
    """The request is refused with this status. Git shows the text to its user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class DisconnectedError(Exception):
    """The client has closed the connection."""


class RequestBody:
    """The body of a request, decompressed. Methods raise `HttpError` if it exceeds the limit in bytes."""

    def __init__(self, receive: Receive, limit: int, *, compressed: bool) -> None:
        self._receive, self._limit, self._left = receive, limit, limit
        self._inflate = zlib.decompressobj(_GZIP_WINDOW_BITS) if compressed else None
        self._encoded, self._buffer, self._has_more = b"", bytearray(), True

    @property
    def size(self) -> int:
        """The number of bytes that were received, after decompression."""
        return self._limit - self._left

    async def lines(self, maximum: int) -> Sequence[bytes]:
        """The lines (pkt-line) up to a flush packet. Raises `ProtocolError`, also for more than `maximum` lines."""
        lines: list[bytes] = []
        while length := content_length(await self._read_exactly(LENGTH_BYTES)):
            if len(lines) == maximum:
                raise ProtocolError(f"at most {maximum} refs can be named in a push")
            lines.append(await self._read_exactly(length))
        return lines

    async def into(self, file: IO[bytes]) -> int:
        """Write the rest of the body to a file. Returns the number of bytes."""
        size = 0
        while self._buffer or await self._fill():
            await asyncio.to_thread(file.write, bytes(self._buffer))
            size += len(self._buffer)
            self._buffer.clear()
        return size

    async def whole(self) -> bytes:
        """Read the whole body."""
        while await self._fill():
            pass
        return bytes(self._buffer)

    async def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not await self._fill():
                raise ProtocolError("the request ends too early")
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return content

    async def _fill(self) -> bool:
        """Add the next part to the buffer. Returns whether there was one."""
        while True:
            part = self._next_decompressed() if self._encoded else b""
            if part:
                self._left -= len(part)
                if self._left < 0:
                    raise HttpError(413, "the request is too large (SANDHERD_MAX_REPOSITORY_MB)")
                self._buffer += part
                return True
            if not self._has_more:
                return False
            self._encoded = await self._receive_part()

    def _next_decompressed(self) -> bytes:
        """The next decompressed part. Its size is limited, because a small compressed body may expand to any size."""
        if self._inflate is None:
            part, self._encoded = self._encoded, b""
            return part
        if self._inflate.eof:
            raise HttpError(400, "the request has more than one compressed part")
        try:
            part = self._inflate.decompress(self._encoded, _PIECE_BYTES)
        except zlib.error:
            raise HttpError(400, "the request's body is not valid gzip") from None
        self._encoded = self._inflate.unconsumed_tail or self._inflate.unused_data
        return part

    async def _receive_part(self) -> bytes:
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                message = await self._receive()
        except TimeoutError:
            raise HttpError(408, "the request was not received in time") from None
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        self._has_more = message.get("more_body", False)
        return bytes(message.get("body", b""))


class ProxyResponse:
    """The response, sent in parts."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def begin(self, status: int, content_type: str, *headers: tuple[str, str]) -> None:
        """Send the status and the headers."""
        pairs = (("content-type", content_type), ("cache-control", "no-cache"), *headers)
        encoded = [(name.encode(), value.encode()) for name, value in pairs]
        self.has_begun = True
        await self._send_message({"type": "http.response.start", "status": status, "headers": encoded})

    async def part(self, content: bytes, *, more: bool = True) -> None:
        """Send a part of the body."""
        await self._send_message({"type": "http.response.body", "body": content, "more_body": more})

    async def whole(self, status: int, content_type: str, content: bytes, *headers: tuple[str, str]) -> None:
        """Send a whole response."""
        await self.begin(status, content_type, ("content-length", str(len(content))), *headers)
        await self.part(content, more=False)

    async def _send_message(self, message: MutableMapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise DisconnectedError from None
