"""Due times, one for each key."""

import heapq
from datetime import datetime


class Alarms:
    """A heap with lazy deletion: outdated entries stay until they reach the top; `_times` has the current times."""

    def __init__(self) -> None:
        self._times: dict[str, datetime] = {}
        self._heap: list[tuple[datetime, str]] = []

    def set(self, key: str, at: datetime | None) -> None:
        """Set when the key is due; with None, it is never due."""
        if at is None:
            self._times.pop(key, None)
        elif self._times.get(key) != at:
            self._times[key] = at
            heapq.heappush(self._heap, (at, key))

    def due(self, now: datetime) -> list[str]:
        """The keys that are due, earliest first. They remain due until set again."""
        due: dict[str, datetime] = {}
        while (at := self.first()) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            due[key] = at
        for key, at in due.items():
            heapq.heappush(self._heap, (at, key))
        return list(due)

    def first(self) -> datetime | None:
        """The earliest due time, or None."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
