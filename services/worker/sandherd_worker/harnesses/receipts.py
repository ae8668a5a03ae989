"""Messages on their way to an agent, each awaiting the agent's receipt."""

import asyncio

from sandherd_worker.harnesses.base import MessageRefusedError


class Receipts:
    """The awaited receipts. Once closed, all waiting and later messages are refused."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[str | None]] = {}
        self._closed: str | None = None

    def expect(self, message: str) -> "asyncio.Future[str | None]":
        """A future of the receipt: None if the message was taken, else the reason of the refusal.

        Raises `MessageRefusedError` if closed.
        """
        if self._closed is not None:
            raise MessageRefusedError(self._closed)
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[message] = future
        return future

    def resolve(self, message: str, refusal: str | None) -> None:
        """Set the receipt that the agent has sent for a message; ignore it if it is not awaited."""
        future = self._waiting.pop(message, None)
        if future is not None and not future.done():
            future.set_result(refusal)

    def close(self, reason: str) -> None:
        """Refuse the waiting messages and all later ones for this reason."""
        self._closed = self._closed or reason
        for message in list(self._waiting):
            self.resolve(message, reason)
