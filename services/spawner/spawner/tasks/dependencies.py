"""Checks the dependencies of a submitted task. They are other tasks of its project."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from sandherd.contracts.errors import Code
from spawner.spec_resolution import Refusal

_FIELD: Final = "spec.depends_on"
_MAX_PENDING: Final = 1000

DependsOn = Callable[[str], Iterable[str] | None]
"""The dependencies of a task of the same project, by name; None if there is no such task."""


def cycle_refusal(task: str, depends_on: Iterable[str], dependencies_of: DependsOn) -> Refusal | None:
    """The refusal if a dependency depends on the task itself, directly or through others; else None."""
    for first in depends_on:
        path = _path(first, task, dependencies_of)
        if path:
            return Refusal(f"the dependencies form a cycle: {' → '.join([task, *path])}", _FIELD)
    return None


def missing_refusal(names: list[str], project: str) -> Refusal:
    """The refusal of a task whose dependencies do not exist."""
    missing = ", ".join(names)
    return Refusal(f"there is no task {missing} in project {project}", _FIELD, Code.NOT_FOUND)


class PendingDependencies:
    """Submissions that wait until their dependencies are submitted. Needed to detect those that wait for each other."""

    def __init__(self) -> None:
        self._depends_on: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def note(self, key: str, depends_on: tuple[str, ...]) -> None:
        """Add a waiting submission. Above 1000, the oldest is dropped; a cycle with it is reported as missing tasks."""
        self._depends_on[key] = depends_on
        self._depends_on.move_to_end(key)
        if len(self._depends_on) > _MAX_PENDING:
            self._depends_on.popitem(last=False)

    def remove(self, key: str) -> None:
        """Remove a submission that no longer waits."""
        self._depends_on.pop(key, None)

    def get(self, key: str) -> tuple[str, ...] | None:
        """The dependencies of a waiting submission; None if it does not wait."""
        return self._depends_on.get(key)


def _path(begin: str, end: str, dependencies_of: DependsOn) -> list[str]:
    """The tasks from `begin` to `end`, each depending on the next; empty if there is no such path."""
    predecessors: dict[str, str | None] = {begin: None}
    unvisited = [begin]
    while unvisited:
        name = unvisited.pop()
        if name == end:
            return _path_to(name, predecessors)
        for dependency in dependencies_of(name) or ():
            if dependency not in predecessors:
                predecessors[dependency] = name
                unvisited.append(dependency)
    return []


def _path_to(name: str, predecessors: dict[str, str | None]) -> list[str]:
    """The path from the beginning to this task. `predecessors` has the task before each task of the path."""
    path = [name]
    while (before := predecessors[path[-1]]) is not None:
        path.append(before)
    return path[::-1]
