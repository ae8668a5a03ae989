"""Orders items of several sources by time: each is held for a moment, because an earlier one may still arrive.

Nothing here waits; `cli.render.timed_display` does.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

HOLD_SECONDS: Final = 0.3
"""How long an item is held; one that arrives later than this after a younger one is shown behind it."""

ItemT = TypeVar("ItemT")


@dataclass(order=True, frozen=True)
class _Held(Generic[ItemT]):
    time: datetime
    number: int
    received: float = field(compare=False)
    item: ItemT = field(compare=False)


class TimeOrder(Generic[ItemT]):
    """Accepts items with their times, and returns them in order of time. `now` is a monotonic clock in seconds.

    Items of one source keep the order in which they were added, even if the source's clock was set back.
    """

    def __init__(self, hold: float = HOLD_SECONDS) -> None:
        self._hold = hold
        self._held: list[_Held[ItemT]] = []
        """In the order in which they were received."""
        self._latest: dict[str, datetime] = {}
        self._count = 0

    def add(self, item: ItemT, *, source: str, time: datetime, now: float) -> None:
        """Hold an item of a source."""
        self._latest[source] = time = max(time, self._latest.get(source, time))
        self._count += 1
        self._held.append(_Held(time, self._count, now, item))

    def due(self, now: float) -> list[ItemT]:
        """The items that were held long enough, and all with an earlier time, in order."""
        if not self._held or self._held[0].received + self._hold > now:
            return []
        last = max(held for held in self._held if held.received + self._hold <= now)
        return self._release([held for held in self._held if held <= last])

    def rest(self) -> list[ItemT]:
        """All held items, in order."""
        return self._release(self._held)

    def due_in(self, now: float) -> float | None:
        """Seconds until the next item is due; None without one."""
        if not self._held:
            return None
        return max(0.0, self._held[0].received + self._hold - now)

    def _release(self, released: list[_Held[ItemT]]) -> list[ItemT]:
        numbers = {held.number for held in released}
        self._held = [held for held in self._held if held.number not in numbers]
        return [held.item for held in sorted(released)]
