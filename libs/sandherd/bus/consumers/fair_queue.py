"""A queue that is fair between projects, and between the entities of a project. Pure.

A lane has the messages of one entity, such as a sandbox. They are taken in the order of arrival, one at a time: the
next message waits until `release` is called for the lane. Projects take turns message by message (deficit round robin
with a quantum of one: Shreedhar and Varghese, 1995), and so do the lanes of a project.
"""

import json
from collections import OrderedDict, deque
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from sandherd.bus.consumers.outcomes import Delivery
from sandherd.contracts.subjects import EVENT_TOKENS

ItemT = TypeVar("ItemT")


class Lane(NamedTuple):
    """The project and the entity that a message is about. Messages of one lane are handled in order."""

    project: str
    entity: str


class FairQueue(Generic[ItemT]):
    """Queued items by lane. A lane whose item was taken is busy until `release`."""

    def __init__(self) -> None:
        self._ready: OrderedDict[str, OrderedDict[Lane, deque[ItemT]]] = OrderedDict()
        self._busy: dict[Lane, deque[ItemT]] = {}
        self._count = 0

    def __len__(self) -> int:
        """The number of queued items."""
        return self._count

    def put(self, lane: Lane, item: ItemT) -> None:
        """Append an item to its lane."""
        self._count += 1
        waiting = self._busy.get(lane)
        if waiting is None:
            waiting = self._ready.setdefault(lane.project, OrderedDict()).setdefault(lane, deque())
        waiting.append(item)

    def take(self) -> ItemT | None:
        """Take the first item of the next lane, or None if no lane is ready. The lane is busy until `release`."""
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
        """Put a taken item back at the front of its lane, and release the lane."""
        self._count += 1
        self._busy[lane].appendleft(item)
        self.release(lane)

    def release(self, lane: Lane) -> None:
        """End the busy state of a lane. Its next item may be taken, after the items of other lanes."""
        waiting = self._busy.pop(lane)
        if waiting:
            self._ready.setdefault(lane.project, OrderedDict())[lane] = waiting

    def drain(self) -> list[ItemT]:
        """Remove and return all queued items."""
        lanes = [*(waiting for lanes in self._ready.values() for waiting in lanes.values()), *self._busy.values()]
        items = [item for waiting in lanes for item in waiting]
        self._ready.clear()
        for waiting in self._busy.values():
            waiting.clear()
        self._count = 0
        return items


_ENTITY_FIELDS: Final = ("sandbox", "task")


def lane_of(delivery: Delivery) -> Lane:
    """The lane of an event or a command. A command's subject has no entity, so the entity is read from the payload."""
    lane = _lane_of_event(delivery.subject)
    return lane or Lane(delivery.subject.split(".")[-1], _entity_of_command(delivery.data))


@lru_cache(maxsize=8192)  # most events have one of a few subjects
def _lane_of_event(subject: str) -> Lane | None:
    """The lane of an event; None for a command."""
    tokens = subject.split(".")
    return Lane(tokens[3], tokens[4]) if tokens[2] == "event" and len(tokens) == EVENT_TOKENS else None


def _entity_of_command(document: bytes) -> str:
    """The sandbox or the task that a command names; an empty string if the payload names neither."""
    try:
        data = json.loads(document)["data"]
        return next((name for key in _ENTITY_FIELDS if isinstance(name := data.get(key), str)), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
