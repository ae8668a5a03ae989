"""The events that wait for each client, and the memory that they may take. Pure."""

import asyncio
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from gateway.stream_reader import Frame

QUEUE: Final = 1000
"""Maximum events that wait for one client; a client that is slower than its events is disconnected."""
QUEUE_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the documents that wait for one client: an event may have 256 KiB."""
FEED_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of the documents that wait for the clients of a project, and of those that they read at once."""


class FrameQueue:
    """The live events of one client, from `begin` on. `overflowed` is set when it has read too slowly."""

    def __init__(self, entity: str | None, begin: int, maximum: int = QUEUE) -> None:
        self.begin = begin
        self.entity = entity
        self.size = 0
        self.overflowed = asyncio.Event()
        self._maximum = maximum
        self._frames: deque[Frame] = deque()
        self._arrived = asyncio.Event()

    def offer(self, frame: Frame) -> None:
        """Add a frame, if it is about the client's entity."""
        if self.entity not in {None, frame.entity} or self.overflowed.is_set():
            return
        if len(self._frames) >= self._maximum or self.size + len(frame.document) > QUEUE_BYTES:
            self.end()
            return
        self.size += len(frame.document)
        self._frames.append(frame)
        self._arrived.set()

    def end(self) -> None:
        """Leave out what waits: the client is disconnected, and continues from its position."""
        self._frames.clear()
        self.size = 0
        self.overflowed.set()

    async def take(self, seconds: float) -> Frame | None:
        """The next frame; None if there is none within this time."""
        if not self._frames:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self.size -= len(frame.document)
        return frame


def end_slowest(clients: Collection[FrameQueue]) -> None:
    """End the longest queues until what waits for these clients fits into `FEED_BYTES`.

    Queues of the same entity have the same events, from different ones on: only the longest of them counts.
    """
    if sum(client.size for client in clients) <= FEED_BYTES:
        return
    longest: dict[str | None, FrameQueue] = {}
    for client in sorted(clients, key=lambda queue: queue.size):
        longest[client.entity] = client
    while sum(queue.size for queue in longest.values()) > FEED_BYTES:
        entity, slowest = max(longest.items(), key=lambda item: item[1].size)
        for client in clients:
            if client.entity == entity and client.size > slowest.size // 2:
                client.end()
        longest[entity] = max((one for one in clients if one.entity == entity), key=lambda queue: queue.size)
