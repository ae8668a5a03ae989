"""Times at which something is due, one for each key."""

import heapq
from datetime import datetime


class Alarms:
    """A heap; what was set anew stays in it until it comes up, and `_set` says what is true."""

    def __init__(self) -> None:
        self._set: dict[str, datetime] = {}
        self._heap: list[tuple[datetime, str]] = []

    def set(self, key: str, at: datetime | None) -> None:
        """It is due then; None: never."""
        if at is None:
            self._set.pop(key, None)
        elif self._set.get(key) != at:
            self._set[key] = at
            heapq.heappush(self._heap, (at, key))

    def due(self, now: datetime) -> list[str]:
        """What is due, the earliest first. It stays so until it is set anew."""
        found: dict[str, datetime] = {}
        while (at := self.first()) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            found[key] = at
        for key, at in found.items():
            heapq.heappush(self._heap, (at, key))
        return list(found)

    def first(self) -> datetime | None:
        """When the next is due."""
        while self._heap and self._set.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
