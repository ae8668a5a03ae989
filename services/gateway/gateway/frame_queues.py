"""The events that wait for each client, and the memory that they may take. Pure."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from gateway.stream_reader import EventFrame

QUEUE_EVENTS: Final = 1000
"""Maximum number of events that wait for one client. A client that reads too slowly is disconnected."""
QUEUE_BYTES: Final = 8 * 1024 * 1024
"""Maximum memory of the documents that wait for one client. An event may have 256 KiB."""
FEED_BYTES: Final = 32 * 1024 * 1024
"""Maximum memory of the documents that wait for all clients of a project together, and of the stored events that these
clients read at the same time."""
_EMPTY_BYTES: Final = sys.getsizeof("")


class FrameQueue:
    """The live events that wait for one client, from the sequence `begin` on.

    `on_overflow` is called when events are dropped because the client has read too slowly.
    """

    def __init__(self, entity: str | None, begin: int, max_events: int = QUEUE_EVENTS) -> None:
        self.begin = begin
        self.entity = entity
        self.size = 0  # bytes of memory of the waiting documents
        self.overflowed = False
        self.on_overflow: Callable[[], object] | None = None
        self._max_events = max_events
        self._frames: deque[EventFrame] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def offer(self, frame: EventFrame) -> None:
        """Add a frame, if it is about the client's entity. A queue without space for it is ended."""
        if self.entity not in {None, frame.entity} or self.overflowed:
            return
        size = _memory_bytes(frame)
        if len(self._frames) >= self._max_events or self.size + size > QUEUE_BYTES:
            self.end()
            return
        self.size += size
        self._frames.append(frame)
        self.wake()

    def end(self) -> None:
        """Drop the waiting events: the client is disconnected, and can continue from its position."""
        self._frames.clear()
        self.size = 0
        self.overflowed = True
        if self.on_overflow is not None:
            self.on_overflow()

    def wake(self) -> None:
        """End a wait in `take`, even if there is no frame."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> EventFrame | None:
        """The next frame; None after `wake` if there is none."""
        if not self._frames:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self.size -= _memory_bytes(frame)
        return frame


def _memory_bytes(frame: EventFrame) -> int:
    """The memory of a frame's document: Python stores each of its characters in one, two or four bytes."""
    return sys.getsizeof(frame.document) - _EMPTY_BYTES


def end_slowest(clients: Collection[FrameQueue]) -> None:
    """End the longest queues until the documents that wait for these clients take at most `FEED_BYTES` of memory.

    Queues of the same entity have the same documents and differ in their first event. So only the longest of them
    counts.
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
        longest[entity] = max((queue for queue in clients if queue.entity == entity), key=lambda queue: queue.size)
