"""The agent's terminal output: read no faster than the spool can take it, redacted, and sent in pieces.

There is an end to how much of it is shown: beyond that it is read and let go, a line says so, and at its end another
line says how much is missing and the last of it is shown.
"""

import asyncio
import codecs
from collections.abc import Awaitable, Callable
from typing import Final

from sandherd_worker.harnesses.cutting import Allowance, Cut
from sandherd_worker.redaction import Redactor
from sandherd_worker.stream_redaction import StreamRedactor

CHUNK_BYTES: Final = 64 * 1024
_PIECE: Final = CHUNK_BYTES // 4
"""How many characters of the end are shown together; few enough to fit an answer of the history whole."""
_LINGER: Final = 0.05
"""How long output waits for more of it, in seconds, once some has gone out."""
_RATE: Final = 4 * 1024 * 1024
_BURST: Final = 16 * 1024 * 1024
_LET_GO: Final = 256 * 1024 * 1024
"""How much a second is read of what is not shown."""
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

    Output that is read within `together` seconds is shown at once. Several may have one allowance.
    """

    def __init__(
        self,
        redactor: Redactor,
        show: Callable[[str], Awaitable[None]],
        pace: Pace | None = None,
        together: float = _LINGER,
        allowance: Allowance | None = None,
    ) -> None:
        self._show = show
        self._together = together
        self._redactor = redactor
        self._stream = StreamRedactor(redactor)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pace = pace or Pace()
        self._allowance = allowance or Allowance()
        self._cut: Cut | None = None
        self.length = 0
        """How many characters there were; of what was left out, how many bytes."""
        self.tail = ""
        """The last of them."""

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the pipe. Raises what `show` raises."""
        while data := await self._next(reader):
            await asyncio.sleep(self._pace.wait(len(data), asyncio.get_running_loop().time()))
            await self._take(data)
            if len(data) < CHUNK_BYTES and self._cut is None:
                # What comes within a moment goes together; the first of it has gone out at once.
                await asyncio.sleep(self._together)
        if self._cut is None:
            await self._tell(self._stream.feed(self._decoder.decode(b"", final=True)) + self._stream.finish())
        else:
            end = self._cut.end(self._redactor)
            self.length += self._cut.left_out
            for start in range(0, len(end), _PIECE):
                await self._tell(end[start : start + _PIECE])

    async def _take(self, data: bytes) -> None:
        if self._cut is not None:
            self._cut.add(data)
            return
        granted = self._allowance.take(len(data))
        await self._tell(self._stream.feed(self._decoder.decode(data[:granted])))
        if granted < len(data):
            held = self._stream.abandon().encode("utf-8", "surrogateescape") + self._decoder.getstate()[0]
            self._cut = Cut(held + data[granted:], self._allowance.last)
            self._pace = Pace(_LET_GO, _LET_GO)
            await self._tell(self._cut.begin(self._allowance))

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
