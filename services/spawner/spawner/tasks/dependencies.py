"""What a task waits for: other tasks of its project. Who they are is checked once, when it is submitted."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from spawner.resolving import Refusal

_FIELD: Final = "spec.depends_on"
_MOST_WAITING: Final = 1000

DependsOn = Callable[[str], Iterable[str] | None]
"""The dependencies of a task of the same project, by name; None if there is no such task."""


def circle(task: str, depends_on: Iterable[str], of: DependsOn) -> Refusal | None:
    """Why these dependencies can never be met, if one of them waits for the task itself; directly or through others."""
    for first in depends_on:
        way = _way(first, task, of)
        if way:
            return Refusal(f"the dependencies go in a circle: {' → '.join([task, *way])}", _FIELD)
    return None


def absent(names: list[str], project: str) -> Refusal:
    """The refusal of a task that waits for what is not there."""
    which = ", ".join(names)
    return Refusal(f"there is no task {which} in project {project}: submit what a task depends on before it", _FIELD)


class Waiting:
    """Submissions that wait for one that they depend on: two that wait for each other are found out by it."""

    def __init__(self) -> None:
        self._depends_on: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def note(self, key: str, depends_on: tuple[str, ...]) -> None:
        """This one waits. The oldest are forgotten when there are very many: then they are refused as missing."""
        self._depends_on[key] = depends_on
        self._depends_on.move_to_end(key)
        if len(self._depends_on) > _MOST_WAITING:
            self._depends_on.popitem(last=False)

    def forget(self, key: str) -> None:
        """It waits no more."""
        self._depends_on.pop(key, None)

    def get(self, key: str) -> tuple[str, ...] | None:
        """What it depends on; None if it does not wait."""
        return self._depends_on.get(key)


def _way(begin: str, end: str, of: DependsOn) -> list[str]:
    """The tasks from `begin` to `end`, each of which depends on the next; empty if there is no such way."""
    came_from: dict[str, str | None] = {begin: None}
    to_see = [begin]
    while to_see:
        name = to_see.pop()
        if name == end:
            return _back(name, came_from)
        for following in of(name) or ():
            if following not in came_from:
                came_from[following] = name
                to_see.append(following)
    return []


def _back(name: str, came_from: dict[str, str | None]) -> list[str]:
    way = [name]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    return way[::-1]
