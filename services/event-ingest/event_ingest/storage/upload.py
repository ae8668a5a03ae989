"""An object that is written in pieces and sent meanwhile, so that only some parts of a large object are in memory."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import Full, Queue
from typing import Final

PART_BYTES: Final = 8 * 1024 * 1024
"""The size of a part. An object that fits into one part is sent in one request."""
_MAX_WAITING_PIECES: Final = 4
_CHECK_SECONDS: Final = 0.2  # interval of checks whether sending has failed

Content = bytes | Iterator[bytes]


class _AbandonedError(Exception):
    """Ends the sending of an object that was abandoned."""


class Upload:
    """An object that exists once it is finished. Its methods block, and raise the errors of `send`."""

    def __init__(self, send: Callable[[Content], None]) -> None:
        """`send` sends the content of an object. If an iterator of pieces raises an error, it creates no object."""
        self._send = send
        self._first_part = bytearray()
        self._pieces: Queue[bytes | None] = Queue(_MAX_WAITING_PIECES)  # None: the end
        self._sending: Future[None] | None = None
        self._abandoned = False

    def write(self, data: memoryview) -> int:
        """Add bytes. Returns their number, as all of them are accepted."""
        if self._sending is None:
            self._first_part += data
            if len(self._first_part) > PART_BYTES:
                self._begin()
        else:
            self._put_or_raise(bytes(data), self._sending)
        return len(data)

    def finish(self) -> None:
        """Send the remaining bytes. Then the object exists."""
        if self._sending is None:
            self._send(bytes(self._first_part))
        else:
            self._put_or_raise(None, self._sending)
            self._sending.result()

    def abandon(self) -> None:
        """Stop sending, so that the object does not exist. Errors of sending are ignored."""
        if self._sending is not None:
            self._abandoned = True
            self._put(None, self._sending)
            wait([self._sending])

    def _begin(self) -> None:
        self._pieces.put(bytes(self._first_part))
        self._first_part.clear()
        sender = ThreadPoolExecutor(1)
        self._sending = sender.submit(self._send, self._take_pieces())
        sender.shutdown(wait=False)

    def _put_or_raise(self, piece: bytes | None, sending: "Future[None]") -> None:
        self._put(piece, sending)
        if sending.done():
            sending.result()

    def _put(self, piece: bytes | None, sending: "Future[None]") -> None:
        while not sending.done():
            try:
                self._pieces.put(piece, timeout=_CHECK_SECONDS)
            except Full:
                continue
            return

    def _take_pieces(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None and not self._abandoned:
            yield piece
        if self._abandoned:
            raise _AbandonedError
