"""The tasks that could begin now, in the order of their turns.

Finding the first that has room is cheap, however many wait: neither those behind it are looked at, nor those of
projects and runtimes that are full.
"""

import bisect
import heapq
from typing import Final

from spawner.tasks.room import Room
from spawner.tasks.scheduling import Place

Line = tuple[str, str]
"""A runtime and a project: the tasks of one line have room together or not at all."""

_WASTE: Final = 1000
"""So many places that are none any more may be kept before all is put in order."""


class Ready:
    """A heap of places for each line, and for each runtime a heap of the first place of every project with room.

    What is taken out stays in the heaps until it comes up; `_places` says what is true.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._places: dict[str, tuple[str, Place]] = {}
        self._lines: dict[Line, list[Place]] = {}
        self._heads: dict[str, list[Place]] = {}
        self._listed: dict[Line, Place] = {}
        """The place by which a line stands among the heads."""
        self._ages: list[tuple[float, str]] = []
        """A heap as well: when each was submitted."""
        self._pushed = 0
        self._ranked: list[Place] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def put(self, key: str, runtime: str, place: Place) -> None:
        """This task is ready, and stands there."""
        if self._places.get(key) == (runtime, place):
            return
        self._ranked = None
        self._places[key] = (runtime, place)
        self._push(runtime, place)
        if self._pushed > 2 * len(self._places) + _WASTE:
            self._rebuild()

    def discard(self, key: str) -> None:
        """This task is not ready."""
        if self._places.pop(key, None) is not None:
            self._ranked = None

    def first(self) -> str | None:
        """The task whose turn it is, of those for which there is room."""
        if self._room.full:
            return None
        open_runtimes = [runtime for runtime in self._heads if not self._room.runtime_full(runtime)]
        found = [place for runtime in open_runtimes if (place := self._top(runtime)) is not None]
        return _key(min(found)) if found else None

    def has_room(self, project: str) -> None:
        """There may be room for this project again."""
        for runtime in self._heads:
            self._list((runtime, project))

    def before(self, place: Place) -> int:
        """How many stand before this place, whether there is room for them or not."""
        if self._ranked is None:
            self._ranked = sorted(place for _, place in self._places.values())
        return bisect.bisect_left(self._ranked, place)

    def oldest(self) -> float | None:
        """When the one was submitted that was submitted first."""
        ages = self._ages
        while ages and not self._is_ready_since(*ages[0]):
            heapq.heappop(ages)
        return ages[0][0] if ages else None

    def _is_ready_since(self, submitted: float, key: str) -> bool:
        _, place = self._places.get(key, (None, None))
        return place is not None and place[1] == submitted

    def _push(self, runtime: str, place: Place) -> None:
        line = (runtime, place[2])
        self._pushed += 1
        heapq.heappush(self._lines.setdefault(line, []), place)
        heapq.heappush(self._ages, (place[1], _key(place)))
        self._heads.setdefault(runtime, [])
        self._list(line)

    def _list(self, line: Line) -> None:
        """Have the line stand among the heads by its first place, if its project has room."""
        if self._room.project_full(line[1]):
            return
        head, listed = self._head(line), self._listed.get(line)
        if head is not None and (listed is None or head < listed):
            self._listed[line] = head
            heapq.heappush(self._heads[line[0]], head)

    def _top(self, runtime: str) -> Place | None:
        """The first place of this runtime, of projects that have room."""
        heads = self._heads[runtime]
        while heads:
            place = heads[0]
            line = (runtime, place[2])
            listed = self._listed.get(line) == place
            if listed and self._head(line) == place and not self._room.project_full(line[1]):
                return place
            heapq.heappop(heads)
            if listed:
                # Its first is another by now, or its project is full: then it comes back with `has_room`.
                del self._listed[line]
                self._list(line)
        return None

    def _head(self, line: Line) -> Place | None:
        """The first of a line, once those that are not ready any more are dropped."""
        places = self._lines.get(line, [])
        while places and self._places.get(_key(places[0])) != (line[0], places[0]):
            heapq.heappop(places)
        if places:
            return places[0]
        self._lines.pop(line, None)
        return None

    def _rebuild(self) -> None:
        """Drop all that is not true any more. It costs as much as was put in since the last time."""
        self._lines, self._listed, self._heads, self._ages, self._pushed = {}, {}, {}, [], 0
        for runtime, place in self._places.values():
            self._push(runtime, place)


def _key(place: Place) -> str:
    return f"{place[2]}.{place[3]}"
