"""Output beyond what is shown of it: let go, but for its end."""

import sys
from typing import Final

from sandherd_worker.redaction import Redactor
from sandherd_worker.stream_redaction import StreamRedactor

MOST_SHOWN: Final = 64 * 1024 * 1024
"""How many bytes of an attempt's output are shown."""
LAST_KEPT: Final = 256 * 1024
"""How many of the last bytes are shown beyond them."""
_BEFORE: Final = 16 * 1024
"""How much before these is looked at: a secret may have begun in it."""


class Allowance:
    """What may be shown, taken piece by piece."""

    @classmethod
    def unbounded(cls) -> "Allowance":
        """For output that has its bound elsewhere."""
        return cls(most=sys.maxsize)

    def __init__(self, most: int = MOST_SHOWN, last: int = LAST_KEPT) -> None:
        self.most, self.last = most, last
        self._left = most

    def take(self, wanted: int) -> int:
        """How many of so many bytes may be shown."""
        granted = min(wanted, self._left)
        self._left -= granted
        return granted


class Cut:
    """What comes after the last that was shown. Only the end of it is held, and it is not redacted before the end."""

    def __init__(self, held: bytes, last: int = LAST_KEPT) -> None:
        self._last = last
        self._end = bytearray(held)
        self.left_out = 0
        """How many bytes will not be shown."""

    def add(self, data: bytes) -> None:
        """More of it."""
        self._end += data
        if len(self._end) > 2 * (self._last + _BEFORE):
            self._drop(len(self._end) - self._last - _BEFORE)

    def begin(self, allowance: Allowance) -> str:
        """The line that is shown at once."""
        most, last = _amount(allowance.most), _amount(allowance.last)
        return f"\n[sandherd: more than {most} of output; of the rest only the last {last} are shown, when it ends]\n"

    def end(self, redactor: Redactor) -> str:
        """How much is missing, and the last of it, without its secrets."""
        stream = StreamRedactor(redactor)
        hidden = _text(bytes(self._end[: max(0, len(self._end) - self._last)]))
        # What is not shown goes through, too: a secret that begins in it ends in what is.
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
