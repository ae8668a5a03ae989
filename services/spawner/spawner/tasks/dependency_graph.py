"""The graph of dependencies between tasks, and whether they are met. Tasks are identified by their keys."""

from collections.abc import Iterable, Iterator
from typing import Final

from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import TaskState

_UNMEETABLE: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, None})
"""States of a dependency (None: it does not exist) with which its dependants will never begin."""


class DependencyGraph:
    """The states of all tasks, and for each task the pending tasks that depend on it."""

    def __init__(self) -> None:
        self._states: dict[str, TaskState] = {}
        self._dependants: dict[str, set[str]] = {}

    def change(self, key: str, state: TaskState | None) -> list[str]:
        """Set a task's state; None if it is removed. Returns the dependants affected by the change."""
        before = self._states.pop(key, None)
        if state is not None:
            self._states[key] = state
        return (
            list(self._dependants.get(key, ()))
            if _meaning_for_dependants(before) != _meaning_for_dependants(state)
            else []
        )

    def add(self, key: str, task: TaskView) -> list[str]:
        """Add a pending task. Returns the tasks that gained a dependant."""
        new_dependencies = [dependency for dependency in _keys(task) if key not in self._dependants.get(dependency, ())]
        for dependency in new_dependencies:
            self._dependants.setdefault(dependency, set()).add(key)
        return new_dependencies

    def remove(self, key: str, task: TaskView) -> list[str]:
        """Remove a task that is no longer pending. Returns the tasks that lost a dependant."""
        lost_dependencies = [dependency for dependency in _keys(task) if key in self._dependants.get(dependency, ())]
        for dependency in lost_dependencies:
            self._dependants[dependency].discard(key)
            if not self._dependants[dependency]:
                del self._dependants[dependency]
        return lost_dependencies

    def dependants(self, key: str) -> int:
        """Number of pending tasks that depend on this task."""
        return len(self._dependants.get(key, ()))

    def unmet(self, task: TaskView) -> list[tuple[str, TaskState | None]]:
        """The names of dependencies that are not completed, each with its state; None: there is no such task."""
        states = zip(task.depends_on, map(self._states.get, _keys(task)), strict=True)
        return [(name, state) for name, state in states if state is not TaskState.COMPLETED]

    def is_unstartable(self, task: TaskView) -> bool:
        """Whether one of its dependencies can never be met."""
        return any(state in _UNMEETABLE for _, state in self.unmet(task))


def _keys(task: TaskView) -> Iterator[str]:
    names: Iterable[str] = task.depends_on
    return (f"{task.project}.{name}" for name in names)


def _meaning_for_dependants(state: TaskState | None) -> str:
    """What a dependency's state means to its dependants."""
    return "met" if state is TaskState.COMPLETED else "never" if state in _UNMEETABLE else "open"
