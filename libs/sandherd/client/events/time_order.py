"""Orders items of several sources by time. Each item is held for a moment, because an earlier one may still arrive.

On an idle machine a moment is enough. Under load the events of one source arrive later than those of another. So items
are held longer while delays differ, and while an earlier item is known to be missing, but never longer than a limit.
Nothing here waits; `cli.render.timed_display` does.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

HOLD_SECONDS: Final = 0.3
"""The shortest time for which an item is held. An item that arrives even later is returned out of order."""
LIMIT_SECONDS: Final = 3.0
"""The longest time for which an item is held."""
MEMORY_SECONDS: Final = 10
"""The time for which a measured delay is used."""
_MARGIN: Final = 1.5
"""An item is held for the largest difference of delays times this factor, because the next one may be larger."""

ItemT = TypeVar("ItemT")


@dataclass(order=True)
class _Held(Generic[ItemT]):
    """An item that is held. `number` keeps the order of equal times; `received` is by the monotonic clock."""

    time: datetime
    number: int
    received: float = field(compare=False)
    item: ItemT = field(compare=False)
    released: bool = field(default=False, compare=False)


class _Delays:
    """The smallest and the largest delay of the items of each second.

    A delay is the difference of our monotonic clock and the item's time, so only differences of delays are meaningful.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._seconds: dict[int, tuple[float, float]] = {}

    def note(self, time: datetime, now: float) -> None:
        """Record the delay of an item with this time, which has just arrived."""
        delay, second = now - time.timestamp(), int(now)
        smallest, largest = self._seconds.get(second, (delay, delay))
        self._seconds[second] = (min(smallest, delay), max(largest, delay))
        for expired in [each for each in self._seconds if each < second - MEMORY_SECONDS]:
            del self._seconds[expired]

    def spread(self, now: float) -> float:
        """Seconds between the smallest and the largest delay. Delays over the limit, as of the history, are ignored."""
        recent = [delays for second, delays in self._seconds.items() if second >= int(now) - MEMORY_SECONDS]
        smallest = min((low for low, _ in recent), default=0.0)
        return max((high - smallest for _, high in recent if high - smallest <= self._limit), default=0.0)


class TimeOrder(Generic[ItemT]):
    """Accepts items with their times, and returns them in order of time. `now` is a monotonic clock in seconds.

    Items of one source keep the order in which they were added, even if the source's clock was set back.
    """

    def __init__(self, hold: float = HOLD_SECONDS, limit: float | None = None) -> None:
        self.incomplete = False
        """Whether an earlier item is known to be missing. While it is, all items are held up to the limit."""
        self._shortest = hold
        self._limit = LIMIT_SECONDS if limit is None else limit
        self._delays = _Delays(self._limit)
        self._by_time: list[_Held[ItemT]] = []
        self._by_receipt: deque[_Held[ItemT]] = deque()
        self._latest: dict[str, datetime] = {}
        self._count = 0

    def add(self, item: ItemT, *, source: str, time: datetime, now: float) -> None:
        """Hold an item of a source."""
        self._delays.note(time, now)
        self._latest[source] = time = max(time, self._latest.get(source, time))
        self._count += 1
        held = _Held(time, self._count, now, item)
        heapq.heappush(self._by_time, held)
        self._by_receipt.append(held)

    def due(self, now: float) -> list[ItemT]:
        """The items that were held long enough, and all items with an earlier time, in order."""
        hold, released = self._hold(now), []
        while self._by_receipt and self._by_receipt[0].received + hold <= now:
            released += self._release_to(self._by_receipt.popleft())
        return released

    def rest(self) -> list[ItemT]:
        """All held items, in order."""
        return self._release_to(max(self._by_time)) if self._by_time else []

    def due_in(self, now: float) -> float | None:
        """Seconds until the next item is due; None if no item is held."""
        while self._by_receipt and self._by_receipt[0].released:
            self._by_receipt.popleft()
        if not self._by_receipt:
            return None
        return max(0.0, self._by_receipt[0].received + self._hold(now) - now)

    def _hold(self, now: float) -> float:
        if self.incomplete:
            return self._limit
        return min(self._limit, max(self._shortest, _MARGIN * self._delays.spread(now)))

    def _release_to(self, last: _Held[ItemT]) -> list[ItemT]:
        released = []
        while self._by_time and self._by_time[0] <= last:
            held = heapq.heappop(self._by_time)
            held.released = True
            released.append(held.item)
        return released
