"""A queue that is fair between projects, and between the entities of a project. Pure.

Messages of one entity leave in the order in which they came, one at a time: until a message is released, the next one
of its entity waits, and messages of other entities go on. Projects take turns message by message (deficit round robin
with a quantum of one: Shreedhar and Varghese, 1995), and so do the entities of a project.
"""

from collections import OrderedDict, deque
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")


class Lane(NamedTuple):
    """What a message is about: messages of one lane are handled in order."""

    project: str
    entity: str


class FairQueue(Generic[ItemT]):
    """Waiting items by lane. A lane whose item was taken is busy until `release`."""

    def __init__(self) -> None:
        self._ready: OrderedDict[str, OrderedDict[Lane, deque[ItemT]]] = OrderedDict()
        self._busy: dict[Lane, deque[ItemT]] = {}
        self._count = 0

    def __len__(self) -> int:
        """The number of items that wait."""
        return self._count

    def put(self, lane: Lane, item: ItemT) -> None:
        """Append an item to its lane."""
        self._count += 1
        waiting = self._busy.get(lane)
        if waiting is None:
            waiting = self._ready.setdefault(lane.project, OrderedDict()).setdefault(lane, deque())
        waiting.append(item)

    def take(self) -> ItemT | None:
        """The first item of the lane whose turn it is, or None. Its lane is busy until `release`."""
        if not self._ready:
            return None
        project, lanes = next(iter(self._ready.items()))
        lane, waiting = lanes.popitem(last=False)
        if lanes:
            self._ready.move_to_end(project)
        else:
            del self._ready[project]
        self._busy[lane] = waiting
        self._count -= 1
        return waiting.popleft()

    def put_back(self, lane: Lane, item: ItemT) -> None:
        """Return the item that was taken to the front of its lane, and release the lane."""
        self._count += 1
        self._busy[lane].appendleft(item)
        self.release(lane)

    def release(self, lane: Lane) -> None:
        """The item that was taken is done: the next one of its lane may be taken, after those of other lanes."""
        waiting = self._busy.pop(lane)
        if waiting:
            self._ready.setdefault(lane.project, OrderedDict())[lane] = waiting

    def drain(self) -> list[ItemT]:
        """Remove and return everything that waits."""
        lanes = [*(waiting for lanes in self._ready.values() for waiting in lanes.values()), *self._busy.values()]
        found = [item for waiting in lanes for item in waiting]
        self._ready.clear()
        for waiting in self._busy.values():
            waiting.clear()
        self._count = 0
        return found
