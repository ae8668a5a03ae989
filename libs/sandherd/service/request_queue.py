"""Fair queues for the requests of a service: they decide which request is processed next. Pure.

A lane is a set of request kinds that share slots. In a lane projects take turns, and within a project its sandboxes. So
a request waits for earlier requests of its own project, and for one request of each other project per turn.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

ItemT = TypeVar("ItemT")

_SHARE_OF_SANDBOX: Final = 4
"""The divisor of a project's queue length that gives the maximum of one sandbox."""


@dataclass(frozen=True, kw_only=True)
class RequestLane:
    """Request kinds that share slots, and their common limits."""

    name: str
    at_once: int = 1
    """Maximum number of requests that are processed at the same time."""
    per_project: int = 1
    """Maximum number of requests of one project that are processed at the same time."""
    cancels: bool = False
    """Whether a request is cancelled at its timeout while it is processed. It must not change anything then."""
    budgeted: bool = False
    """Whether a request's duration and returned rows count against the budget of its project."""

    @classmethod
    def of_kind(cls, request_type: str, at_once: int) -> "RequestLane":
        """A lane for one kind of request; one project gets at most half of its slots."""
        return cls(name=request_type, at_once=at_once, per_project=max(1, at_once // 2))


@dataclass
class _ProjectQueue(Generic[ItemT]):
    """The waiting requests of one project by sandbox, in the order of turns, and the number of running ones."""

    running: int = 0
    waiting: int = 0
    by_sandbox: dict[str, deque[ItemT]] = field(default_factory=dict)

    def take(self) -> ItemT:
        """Remove and return the first item of the sandbox whose turn it is."""
        sandbox, items = next(iter(self.by_sandbox.items()))
        item = items.popleft()
        del self.by_sandbox[sandbox]
        if items:
            self.by_sandbox[sandbox] = items  # as the last sandbox
        self.waiting -= 1
        return item

    def remove(self, unwanted: Callable[[ItemT], bool]) -> list[ItemT]:
        removed: list[ItemT] = []
        remaining: dict[str, deque[ItemT]] = {}
        for sandbox, items in self.by_sandbox.items():
            for item in items:
                if unwanted(item):
                    removed.append(item)
                else:
                    remaining.setdefault(sandbox, deque()).append(item)
        self.by_sandbox = remaining
        self.waiting -= len(removed)
        return removed


class RequestQueue(Generic[ItemT]):
    """The requests of one lane. At most `limit` of each project wait."""

    def __init__(self, lane: RequestLane, limit: int) -> None:
        self._lane = lane
        self._limit = limit
        self._running = 0
        self._projects: dict[str, _ProjectQueue[ItemT]] = {}

    def offer(self, project: str, sandbox: str, item: ItemT) -> bool:
        """Queue a request. Returns False if its project or its sandbox has its maximum number of waiting requests."""
        queue = self._projects.setdefault(project, _ProjectQueue())
        limit = max(1, self._limit // _SHARE_OF_SANDBOX) if sandbox else self._limit
        if queue.waiting >= self._limit or len(queue.by_sandbox.get(sandbox, ())) >= limit:
            self._remove_if_idle(project)
            return False
        queue.by_sandbox.setdefault(sandbox, deque()).append(item)
        queue.waiting += 1
        return True

    def take(self) -> tuple[str, ItemT] | None:
        """Take the next request, with its project. None if no slot is free, or no waiting request may run.

        `release` frees its slot.
        """
        if self._running >= self._lane.at_once:
            return None
        for project, queue in self._projects.items():
            if queue.waiting and queue.running < self._lane.per_project:
                self._move_to_end(project)
                queue.running += 1
                self._running += 1
                return project, queue.take()
        return None

    def release(self, project: str) -> None:
        """Free the slot of a request that was taken."""
        self._running -= 1
        self._projects[project].running -= 1
        self._move_to_end(project)
        self._remove_if_idle(project)

    def remove(self, project: str, unwanted: Callable[[ItemT], bool]) -> list[ItemT]:
        """Remove and return the waiting requests of a project for which `unwanted` is true."""
        queue = self._projects.get(project)
        return queue.remove(unwanted) if queue else []

    def clear(self) -> list[ItemT]:
        """Remove and return all waiting requests."""
        return [item for queue in self._projects.values() for item in queue.remove(lambda _item: True)]

    def waiting(self, project: str) -> int:
        """The number of waiting requests of a project."""
        queue = self._projects.get(project)
        return queue.waiting if queue else 0

    def _move_to_end(self, project: str) -> None:
        """Make the project the last one to be served."""
        self._projects[project] = self._projects.pop(project)

    def _remove_if_idle(self, project: str) -> None:
        queue = self._projects[project]
        if not queue.running and not queue.waiting:
            del self._projects[project]
