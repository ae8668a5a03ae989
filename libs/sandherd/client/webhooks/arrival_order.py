"""The order of events after a restart: those that were delivered before and not acknowledged precede the others.

The broker delivers an unacknowledged event again only after a time, and new events at once. A program that was killed
would otherwise get the later events of a task before its earlier ones. Pure.
"""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

EventT = TypeVar("EventT")


class ArrivalOrder(Generic[EventT]):
    """Holds events until all `unacknowledged` earlier ones have come, then returns them by their sequence.

    An event that comes while it is handled is left out; one that comes again later was lost with its acknowledgement.
    """

    def __init__(self, unacknowledged: int) -> None:
        self._missing = unacknowledged
        self._held: list[tuple[int, EventT]] = []
        self._known: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether earlier events have not come yet."""
        return self._missing > 0

    def add(self, sequence: int, deliveries: int, event: EventT) -> Iterator[EventT]:
        """Add an event. Returns those that are next."""
        if sequence in self._known:
            return
        self._known.add(sequence)
        if deliveries > 1 and self._missing > 0:
            self._missing -= 1
        heapq.heappush(self._held, (sequence, event))
        if self._missing == 0:
            yield from self.release()

    def release(self) -> Iterator[EventT]:
        """Return what is held, also if earlier ones have not come: another program has handled them."""
        self._missing = 0
        while self._held:
            yield heapq.heappop(self._held)[1]

    def done(self, sequence: int) -> None:
        """The event was handled."""
        self._known.discard(sequence)
