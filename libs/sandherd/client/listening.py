"""The live side of following: what is heard, in a queue, with what the connection says of itself between."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from sandherd.client import heard
from sandherd.client.link import Link, Subscription
from sandherd.client.sequencing import Event

QUEUE: Final = 1024
"""How many events may wait for a slow reader here; further ones wait, and may be lost, in the NATS client."""


class Line(Enum):
    """What a connection says of itself."""

    BACK = "back"
    """It was away, and what was said meanwhile was not heard."""
    GONE = "gone"
    """It was closed for good."""


class Listener:
    """Hears subjects. `early` is told of each event as it comes, before anybody reads it."""

    def __init__(self, link: Link, early: Callable[[Event], Awaitable[None]]) -> None:
        self._link = link
        self._early = early
        self._heard: asyncio.Queue[Event] = asyncio.Queue(QUEUE)
        self._line: Line | None = None
        self._something = asyncio.Event()
        self._subscriptions: dict[str, Subscription] = {}
        self._forget: Callable[[], None] | None = None

    @property
    def started(self) -> bool:
        """Whether it listens."""
        return self._forget is not None

    def start(self) -> None:
        """Begin to be told of the connection's changes."""
        self._forget = self._link.on_change(self._changed)

    async def listen(self, *subjects: str) -> None:
        """Hear these, too."""
        for subject in subjects:
            if subject not in self._subscriptions:
                self._subscriptions[subject] = await self._link.listen(subject, self._hear)

    async def next(self, timeout: float) -> Event | Line | None:
        """The next event, or what became of the connection, or None after `timeout` seconds."""
        if self._line is not None:
            line, self._line = self._line, None
            return line
        if not self._heard.empty():
            return self._heard.get_nowait()
        self._something.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._something.wait()
        except TimeoutError:
            return None
        return await self.next(0)

    async def rest(self) -> list[Event]:
        """What was said until now and not read yet: also what is still on its way, or in the NATS client."""
        await self._link.settle()
        found = []
        while not self._heard.empty() or any(
            subscription.pending_msgs for subscription in self._subscriptions.values()
        ):
            if self._heard.empty():
                await asyncio.sleep(0)
            else:
                found.append(self._heard.get_nowait())
        return found

    async def close(self) -> None:
        """Hear no more."""
        if self._forget is not None:
            self._forget()
        while self._subscriptions:
            await self._subscriptions.popitem()[1].unsubscribe()

    async def _hear(self, subject: str, document: bytes) -> None:
        event = heard.live(subject, document)
        if event is not None:
            await self._early(event)
            await self._heard.put(event)
            self._something.set()

    def _changed(self, connected: bool) -> None:  # noqa: FBT001  # one of two things the connection says
        if self._line is not Line.GONE:
            self._line = Line.BACK if connected else Line.GONE
        self._something.set()
