"""Which tasks depend on which, and whether what they wait for has come true. Tasks are named by their keys."""

from collections.abc import Iterable, Iterator
from typing import Final

from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import TaskState

_NEVER: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, None})
"""States of a task, or none at all, with which one that depends on it will never begin."""


class Ties:
    """The states of all tasks, and the pending ones that depend on each."""

    def __init__(self) -> None:
        self._states: dict[str, TaskState] = {}
        self._dependants: dict[str, set[str]] = {}

    def change(self, key: str, state: TaskState | None) -> list[str]:
        """A task's state; None if it is gone. Returns those for whom that makes a difference."""
        before = self._states.pop(key, None)
        if state is not None:
            self._states[key] = state
        return list(self._dependants.get(key, ())) if _meaning(before) != _meaning(state) else []

    def tie(self, key: str, task: TaskView) -> list[str]:
        """This task is pending. Returns the tasks on which one more depends."""
        more = [on for on in _keys(task) if key not in self._dependants.get(on, ())]
        for on in more:
            self._dependants.setdefault(on, set()).add(key)
        return more

    def untie(self, key: str, task: TaskView) -> list[str]:
        """This task is not pending any more. Returns the tasks on which one less depends."""
        fewer = [on for on in _keys(task) if key in self._dependants.get(on, ())]
        for on in fewer:
            self._dependants[on].discard(key)
            if not self._dependants[on]:
                del self._dependants[on]
        return fewer

    def dependants(self, key: str) -> int:
        """How many pending tasks depend on it."""
        return len(self._dependants.get(key, ()))

    def unmet(self, task: TaskView) -> list[tuple[str, TaskState | None]]:
        """What it still waits for, by name, and how far that is; None: there is no such task."""
        states = zip(task.depends_on, map(self._states.get, _keys(task)), strict=True)
        return [(name, state) for name, state in states if state is not TaskState.COMPLETED]

    def never(self, task: TaskView) -> bool:
        """Whether something that it waits for will not come."""
        return any(state in _NEVER for _, state in self.unmet(task))


def _keys(task: TaskView) -> Iterator[str]:
    names: Iterable[str] = task.depends_on
    return (f"{task.project}.{name}" for name in names)


def _meaning(state: TaskState | None) -> str:
    """What a task is to those that depend on it."""
    return "met" if state is TaskState.COMPLETED else "never" if state in _NEVER else "open"
