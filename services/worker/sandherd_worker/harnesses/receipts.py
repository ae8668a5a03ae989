"""Messages on their way to an agent, until it has said of each whether it took it."""

import asyncio

from sandherd_worker.harnesses.base import CannotTakeError


class Receipts:
    """Those that are awaited. Once closed, all that waits and all that comes is refused."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[str | None]] = {}
        self._closed: str | None = None

    def expect(self, message: str) -> "asyncio.Future[str | None]":
        """The answer that is to come: None for taken, else why not. Raises `CannotTakeError` if none can come."""
        if self._closed is not None:
            raise CannotTakeError(self._closed)
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[message] = future
        return future

    def answer(self, message: str, refusal: str | None) -> None:
        """The agent has said it. One that nobody waits for is passed over."""
        future = self._waiting.pop(message, None)
        if future is not None and not future.done():
            future.set_result(refusal)

    def close(self, reason: str) -> None:
        """No answer will come any more."""
        self._closed = self._closed or reason
        for message in list(self._waiting):
            self.answer(message, reason)
