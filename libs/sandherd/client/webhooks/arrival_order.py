"""Orders events after a restart: those that were delivered before and not acknowledged precede the others.

The broker redelivers an unacknowledged event only after some time, but delivers new events at once. After a program was
killed, it would otherwise handle later events of a task before earlier ones. Pure.
"""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

EventT = TypeVar("EventT")


class ArrivalOrder(Generic[EventT]):
    """Holds events until all `unacknowledged` earlier ones were received, then returns them by their sequence.

    An event that is redelivered while it is handled is ignored. After `done` it is returned again: its acknowledgement
    was lost.
    """

    def __init__(self, unacknowledged: int) -> None:
        self._missing = unacknowledged
        self._held: list[tuple[int, EventT]] = []
        self._known: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether earlier events were not received yet."""
        return self._missing > 0

    def add(self, sequence: int, deliveries: int, event: EventT) -> Iterator[EventT]:
        """Add an event. Returns the events to handle next."""
        if sequence in self._known:
            return
        self._known.add(sequence)
        if deliveries > 1 and self._missing > 0:
            self._missing -= 1
        heapq.heappush(self._held, (sequence, event))
        if self._missing == 0:
            yield from self.release()

    def release(self) -> Iterator[EventT]:
        """Return all held events, even if earlier ones were not received: another program has handled them."""
        self._missing = 0
        while self._held:
            yield heapq.heappop(self._held)[1]

    def done(self, sequence: int) -> None:
        """Note that the event was handled."""
        self._known.discard(sequence)
