"""The agent's terminal output: read no faster than the spool can store it, redacted, and published in pieces.

The published output is limited. Output beyond the limit is read and dropped, and a line states that. At the end another
line states how many bytes were dropped, and the last part of the output follows.
"""

import asyncio
import codecs
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from sandherd_worker.redaction import Redactor
from sandherd_worker.stream_redaction import StreamRedactor

MAX_SHOWN: Final = 64 * 1024 * 1024
"""How many bytes of an attempt's output are published."""
TAIL_BYTES: Final = 256 * 1024
"""How many bytes of the end of the output are published if it is longer than `MAX_SHOWN`."""
_SEARCHED_BEFORE_BYTES: Final = 16 * 1024
"""How many bytes before the published end are also searched for secrets, because a secret may begin there."""


class OutputAllowance:
    """The number of bytes that may be published, taken piece by piece."""

    @classmethod
    def unbounded(cls) -> "OutputAllowance":
        """An allowance without a limit, for output that is limited elsewhere."""
        return cls(limit=sys.maxsize)

    def __init__(self, limit: int = MAX_SHOWN, last: int = TAIL_BYTES) -> None:
        self.limit, self.last = limit, last
        self._left = limit

    def take(self, wanted: int) -> int:
        """How many of the `wanted` bytes may be published."""
        granted = min(wanted, self._left)
        self._left -= granted
        return granted


class TruncatedOutput:
    """The output beyond the limit. Only its end is held, and redacted when the output is complete."""

    def __init__(self, held: bytes, last: int = TAIL_BYTES) -> None:
        self._last = last
        self._end = bytearray(held)
        self.left_out = 0
        """How many bytes will not be published."""

    def add(self, data: bytes) -> None:
        """Add more output."""
        self._end += data
        if len(self._end) > 2 * (self._last + _SEARCHED_BEFORE_BYTES):
            self._drop(len(self._end) - self._last - _SEARCHED_BEFORE_BYTES)

    def first_line(self, allowance: OutputAllowance) -> str:
        """The line that is published when the limit is exceeded."""
        limit, last = _amount(allowance.limit), _amount(allowance.last)
        return f"\n[sandherd: more than {limit} of output; of the rest only the last {last} are shown, when it ends]\n"

    def end(self, redactor: Redactor) -> str:
        """The last text to publish: how many bytes are left out, and the end of the output without its secrets."""
        stream = StreamRedactor(redactor)
        hidden = _text(bytes(self._end[: max(0, len(self._end) - self._last)]))
        # The hidden part is fed, too: a secret that begins in it may end in the published part.
        stream.feed(hidden)
        held = _bytes(stream.abandon())
        self._drop(len(_bytes(hidden)) - len(held))
        line = f"[sandherd: {self.left_out} bytes of output are left out here]\n" if self.left_out else ""
        return line + stream.feed(_text(bytes(self._end))) + stream.finish()

    def _drop(self, count: int) -> None:
        del self._end[:count]
        self.left_out += count


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _amount(size: int) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


CHUNK_BYTES: Final = 64 * 1024
_PIECE: Final = CHUNK_BYTES // 4
"""Maximum characters of a piece of the final part, so that a piece fits in a reply of the history."""
_COLLECT_SECONDS: Final = 0.05
"""How long further output is collected after some was published."""
_RATE: Final = 4 * 1024 * 1024
"""How fast output is read, in bytes per second, after a burst of `_BURST` bytes."""
_BURST: Final = 16 * 1024 * 1024
_DISCARD_RATE: Final = 256 * 1024 * 1024
"""How fast output that is not published is read, in bytes per second."""
TAIL_CHARS: Final = 5000
"""How many of the last characters are stored for the tool's result."""


class OutputRate:
    """A token bucket: how long to wait before taking a number of bytes. Pure; `now` is in seconds."""

    def __init__(self, rate: float = _RATE, burst: float = _BURST) -> None:
        self._rate, self._burst = rate, burst
        self._level = burst
        self._at = 0.0

    def wait(self, size: int, now: float) -> float:
        """Take `size` bytes; returns how many seconds to wait first."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        self._level -= size
        return max(0.0, -self._level / self._rate)


class TerminalOutput:
    """Reads one pipe to its end. When it does not read, the agent blocks in its own write: that is the back-pressure.

    The first output is published immediately. Then output that is read within `together` seconds is published in one
    piece. Several readers may share one allowance.
    """

    def __init__(
        self,
        redactor: Redactor,
        show: Callable[[str], Awaitable[None]],
        pace: OutputRate | None = None,
        together: float = _COLLECT_SECONDS,
        allowance: OutputAllowance | None = None,
    ) -> None:
        self._show = show
        self._together = together
        self._redactor = redactor
        self._stream = StreamRedactor(redactor)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pace = pace or OutputRate()
        self._allowance = allowance or OutputAllowance()
        self._cut: TruncatedOutput | None = None
        self.length = 0
        """How many characters were published, plus the number of bytes left out."""
        self.tail = ""
        """The last characters."""

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the pipe. Raises the exceptions of `show`."""
        while data := await self._next(reader):
            await asyncio.sleep(self._pace.wait(len(data), asyncio.get_running_loop().time()))
            await self._handle(data)
            if len(data) < CHUNK_BYTES and self._cut is None:
                # Output that follows soon is published in one piece.
                await asyncio.sleep(self._together)
        if self._cut is None:
            await self._publish_text(self._stream.feed(self._decoder.decode(b"", final=True)) + self._stream.finish())
        else:
            end = self._cut.end(self._redactor)
            self.length += self._cut.left_out
            for start in range(0, len(end), _PIECE):
                await self._publish_text(end[start : start + _PIECE])

    async def _handle(self, data: bytes) -> None:
        if self._cut is not None:
            self._cut.add(data)
            return
        granted = self._allowance.take(len(data))
        await self._publish_text(self._stream.feed(self._decoder.decode(data[:granted])))
        if granted < len(data):
            held = self._stream.abandon().encode("utf-8", "surrogateescape") + self._decoder.getstate()[0]
            self._cut = TruncatedOutput(held + data[granted:], self._allowance.last)
            self._pace = OutputRate(_DISCARD_RATE, _DISCARD_RATE)
            await self._publish_text(self._cut.first_line(self._allowance))

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        reading = asyncio.ensure_future(reader.read(CHUNK_BYTES))
        try:
            done, _ = await asyncio.wait([reading], timeout=_COLLECT_SECONDS)
            if not done:
                await self._publish_text(self._stream.pause())
            return await reading
        finally:
            reading.cancel()

    async def _publish_text(self, text: str) -> None:
        if not text:
            return
        self.length += len(text)
        self.tail = (self.tail + text)[-TAIL_CHARS:]
        await self._show(text)
