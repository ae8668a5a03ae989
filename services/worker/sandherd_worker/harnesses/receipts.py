"""Messages on their way to an agent, each awaiting the agent's receipt."""

import asyncio

from sandherd_worker.harnesses.base import MessageRefusedError


class Receipts:
    """The awaited receipts. Once closed, all waiting and later messages are refused."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[str | None]] = {}
        self._closed: str | None = None

    def expect(self, message: str) -> "asyncio.Future[str | None]":
        """The future receipt: None for taken, else the reason. Raises `MessageRefusedError` if closed."""
        if self._closed is not None:
            raise MessageRefusedError(self._closed)
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[message] = future
        return future

    def resolve(self, message: str, refusal: str | None) -> None:
        """The agent has sent a receipt. One that is not awaited is ignored."""
        future = self._waiting.pop(message, None)
        if future is not None and not future.done():
            future.set_result(refusal)

    def close(self, reason: str) -> None:
        """No further receipts will come."""
        self._closed = self._closed or reason
        for message in list(self._waiting):
            self.resolve(message, reason)
