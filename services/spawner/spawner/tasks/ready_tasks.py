"""The tasks that are ready to begin, in scheduling order.

Finding the first task for which there is capacity is cheap, however many tasks wait: it examines neither later tasks
nor tasks of projects and runtimes that are full.
"""

import bisect
import heapq
from typing import Final

from spawner.tasks.capacity import Capacity
from spawner.tasks.scheduling_order import QueuePosition

Line = tuple[str, str]
"""A runtime and a project. There is capacity for all tasks of a line, or for none."""

_MAX_OUTDATED: Final = 1000
"""Outdated positions that may accumulate before the heaps are rebuilt."""


class ReadyTasks:
    """A heap of positions for each line (`_lines`), and for each runtime a heap of first positions (`_heads`).

    `_heads` has the first position of each line whose project has capacity. Removed tasks stay in the heaps until they
    reach the top; `_positions` has the current ones.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._positions: dict[str, tuple[str, QueuePosition]] = {}
        self._lines: dict[Line, list[QueuePosition]] = {}
        self._heads: dict[str, list[QueuePosition]] = {}
        self._listed: dict[Line, QueuePosition] = {}
        """The position with which a line is listed in `_heads`."""
        self._ages: list[tuple[float, str]] = []
        """A heap of the times at which the tasks were submitted, with their keys."""
        self._pushed = 0
        self._ranked: list[QueuePosition] | None = None

    def __len__(self) -> int:
        return len(self._positions)

    def put(self, key: str, runtime: str, position: QueuePosition) -> None:
        """Add a ready task at its position, or move it."""
        if self._positions.get(key) == (runtime, position):
            return
        self._ranked = None
        self._positions[key] = (runtime, position)
        self._push(runtime, position)
        if self._pushed > 2 * len(self._positions) + _MAX_OUTDATED:
            self._rebuild()

    def discard(self, key: str) -> None:
        """Remove a task that is not ready."""
        if self._positions.pop(key, None) is not None:
            self._ranked = None

    def first(self) -> str | None:
        """The first task for which there is capacity."""
        if self._capacity.full:
            return None
        open_runtimes = [runtime for runtime in self._heads if not self._capacity.runtime_full(runtime)]
        found = [position for runtime in open_runtimes if (position := self._top(runtime)) is not None]
        return _key(min(found)) if found else None

    def capacity_freed(self, project: str) -> None:
        """List the tasks of this project again: it may have capacity now."""
        for runtime in self._heads:
            self._list((runtime, project))

    def before(self, position: QueuePosition) -> int:
        """Number of tasks before this position, whether there is capacity for them or not."""
        if self._ranked is None:
            self._ranked = sorted(position for _, position in self._positions.values())
        return bisect.bisect_left(self._ranked, position)

    def oldest(self) -> float | None:
        """When the oldest ready task was submitted."""
        ages = self._ages
        while ages and not self._is_ready_since(*ages[0]):
            heapq.heappop(ages)
        return ages[0][0] if ages else None

    def _is_ready_since(self, submitted: float, key: str) -> bool:
        _, position = self._positions.get(key, (None, None))
        return position is not None and position[1] == submitted

    def _push(self, runtime: str, position: QueuePosition) -> None:
        line = (runtime, position[2])
        self._pushed += 1
        heapq.heappush(self._lines.setdefault(line, []), position)
        heapq.heappush(self._ages, (position[1], _key(position)))
        self._heads.setdefault(runtime, [])
        self._list(line)

    def _list(self, line: Line) -> None:
        """List the line's first position in `_heads`, if its project has capacity."""
        if self._capacity.project_full(line[1]):
            return
        head, listed = self._head(line), self._listed.get(line)
        if head is not None and (listed is None or head < listed):
            self._listed[line] = head
            heapq.heappush(self._heads[line[0]], head)

    def _top(self, runtime: str) -> QueuePosition | None:
        """The first position of this runtime among projects that have capacity."""
        heads = self._heads[runtime]
        while heads:
            position = heads[0]
            line = (runtime, position[2])
            listed = self._listed.get(line) == position
            if listed and self._head(line) == position and not self._capacity.project_full(line[1]):
                return position
            heapq.heappop(heads)
            if listed:
                # The line's first position has changed, and is listed now, or its project is full:
                # then `capacity_freed` lists the line again.
                del self._listed[line]
                self._list(line)
        return None

    def _head(self, line: Line) -> QueuePosition | None:
        """The first position of a line, after dropping tasks that are no longer ready."""
        positions = self._lines.get(line, [])
        while positions and self._positions.get(_key(positions[0])) != (line[0], positions[0]):
            heapq.heappop(positions)
        if positions:
            return positions[0]
        self._lines.pop(line, None)
        return None

    def _rebuild(self) -> None:
        """Drop all outdated positions. The cost is proportional to what was added since the last rebuild."""
        self._lines, self._listed, self._heads, self._ages, self._pushed = {}, {}, {}, [], 0
        for runtime, position in self._positions.values():
            self._push(runtime, position)


def _key(position: QueuePosition) -> str:
    return f"{position[2]}.{position[3]}"
