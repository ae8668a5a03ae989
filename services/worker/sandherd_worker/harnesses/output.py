"""The agent's terminal output: read no faster than the spool can take it, redacted, and sent in pieces."""

import asyncio
import codecs
from collections.abc import Awaitable, Callable
from typing import Final

from sandherd_worker.redaction import Redactor, StreamRedactor

CHUNK_BYTES: Final = 64 * 1024
_LINGER: Final = 0.05
"""How long output waits for more of it, in seconds, once some has gone out."""
_RATE: Final = 4 * 1024 * 1024
_BURST: Final = 16 * 1024 * 1024
TAIL: Final = 5000
"""How many of the last characters are kept for the tool's result."""


class Pace:
    """A bucket of tokens: how long to wait before taking so many bytes. Pure; `now` is in seconds."""

    def __init__(self, rate: float = _RATE, burst: float = _BURST) -> None:
        self._rate, self._burst = rate, burst
        self._level = burst
        self._at = 0.0

    def wait(self, size: int, now: float) -> float:
        """Take `size` bytes; returns how long to wait first."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        self._level -= size
        return max(0.0, -self._level / self._rate)


class Output:
    """Reads one pipe to its end. Not reading is the back-pressure: the agent then waits in its own write.

    Output that is read within `together` seconds is shown at once.
    """

    def __init__(
        self,
        redactor: Redactor,
        show: Callable[[str], Awaitable[None]],
        pace: Pace | None = None,
        together: float = _LINGER,
    ) -> None:
        self._show = show
        self._together = together
        self._stream = StreamRedactor(redactor)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pace = pace or Pace()
        self.length = 0
        """How many characters were shown."""
        self.tail = ""
        """The last of them."""

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the pipe. Raises what `show` raises."""
        while data := await self._next(reader):
            await asyncio.sleep(self._pace.wait(len(data), asyncio.get_running_loop().time()))
            await self._tell(self._stream.feed(self._decoder.decode(data)))
            if len(data) < CHUNK_BYTES:
                # What comes within a moment goes together; the first of it has gone out at once.
                await asyncio.sleep(self._together)
        await self._tell(self._stream.feed(self._decoder.decode(b"", final=True)) + self._stream.finish())

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        reading = asyncio.ensure_future(reader.read(CHUNK_BYTES))
        try:
            done, _ = await asyncio.wait([reading], timeout=_LINGER)
            if not done:
                await self._tell(self._stream.pause())
            return await reading
        finally:
            reading.cancel()

    async def _tell(self, text: str) -> None:
        if not text:
            return
        self.length += len(text)
        self.tail = (self.tail + text)[-TAIL:]
        await self._show(text)
