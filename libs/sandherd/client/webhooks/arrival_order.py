"""Orders events after a restart: events that the previous program received and did not acknowledge precede new ones.

The broker redelivers an unacknowledged event only after some time, but delivers new events at once. A program that
restarts after a kill would otherwise handle later events of a task before earlier ones. Pure.
"""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

EventT = TypeVar("EventT")


class ArrivalOrder(Generic[EventT]):
    """Holds events until the earlier ones, whose number is `unacknowledged`, are received, then returns all in order.

    An event that is redelivered before `done` is called for it is ignored. After `done` it is returned again, because
    its acknowledgement was lost.
    """

    def __init__(self, unacknowledged: int) -> None:
        self._missing = unacknowledged
        self._held: list[tuple[int, EventT]] = []
        self._known: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether some earlier events have not been received yet."""
        return self._missing > 0

    def add(self, sequence: int, deliveries: int, event: EventT) -> Iterator[EventT]:
        """Add an event that was delivered `deliveries` times. Returns the events to handle next."""
        if sequence in self._known:
            return
        self._known.add(sequence)
        if deliveries > 1 and self._missing > 0:
            self._missing -= 1
        heapq.heappush(self._held, (sequence, event))
        if self._missing == 0:
            yield from self.release()

    def release(self) -> Iterator[EventT]:
        """Return all held events, and wait no longer for earlier ones: another program has handled them."""
        self._missing = 0
        while self._held:
            yield heapq.heappop(self._held)[1]

    def done(self, sequence: int) -> None:
        """Note that the event was handled."""
        self._known.discard(sequence)
