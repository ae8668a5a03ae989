"""The live subscription of a follower: a queue of received events, and signals about the connection."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from sandherd.client.events import decoder
from sandherd.client.events.protocols import HerdConnection, LiveSubscription
from sandherd.client.events.sequencer import Event

QUEUE_SIZE: Final = 1024
"""Maximum number of queued events for a slow reader. Further events wait in the NATS client, and may be lost there."""


class ConnectionSignal(Enum):
    """A change of the connection."""

    BACK = "back"
    """The client has reconnected. It has not received the events that were published meanwhile."""
    CLOSED = "gone"
    """The connection was closed permanently."""


class LiveFeed:
    """Subscribes to subjects. `on_receipt` is called with each event on receipt, before it is read from the queue."""

    def __init__(self, link: HerdConnection, on_receipt: Callable[[Event], Awaitable[None]]) -> None:
        self._link = link
        self._on_receipt = on_receipt
        self._received: asyncio.Queue[Event] = asyncio.Queue(QUEUE_SIZE)
        self._signal: ConnectionSignal | None = None
        self._available = asyncio.Event()
        self._subscriptions: dict[str, LiveSubscription] = {}
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def started(self) -> bool:
        """Whether the connection is observed, because `start` was called."""
        return self._unsubscribe is not None

    def start(self) -> None:
        """Start to observe the connection."""
        self._unsubscribe = self._link.on_change(self._on_connection_change)

    async def listen(self, *subjects: str) -> None:
        """Subscribe to further subjects."""
        for subject in subjects:
            if subject not in self._subscriptions:
                self._subscriptions[subject] = await self._link.listen(subject, self._receive)

    async def next(self, timeout: float) -> Event | ConnectionSignal | None:
        """The next event, or a signal of the connection, or None after `timeout` seconds."""
        if self._signal is not None:
            signal, self._signal = self._signal, None
            return signal
        if not self._received.empty():
            return self._received.get_nowait()
        self._available.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._available.wait()
        except TimeoutError:
            return None
        return await self.next(0)

    async def rest(self) -> list[Event]:
        """All unread events that were published until now, also those in flight or in the NATS client."""
        await self._link.flush()
        events = []
        while not self._received.empty() or any(
            subscription.pending_msgs for subscription in self._subscriptions.values()
        ):
            if self._received.empty():
                await asyncio.sleep(0)
            else:
                events.append(self._received.get_nowait())
        return events

    async def close(self) -> None:
        """Unsubscribe."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        while self._subscriptions:
            await self._subscriptions.popitem()[1].unsubscribe()

    async def _receive(self, subject: str, document: bytes) -> None:
        event = decoder.from_live(subject, document)
        if event is not None:
            await self._on_receipt(event)
            await self._received.put(event)
            self._available.set()

    def _on_connection_change(self, connected: bool) -> None:  # noqa: FBT001  # the signature of `on_change`
        if self._signal is not ConnectionSignal.CLOSED:
            self._signal = ConnectionSignal.BACK if connected else ConnectionSignal.CLOSED
        self._available.set()
