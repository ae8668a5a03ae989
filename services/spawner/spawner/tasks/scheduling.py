"""Whose turn it is: a number for each task that never changes by waiting. All pure; docs/scheduling.md explains it.

    turn = submitted − age · (weight + min(dependants, 10) / 10)         weight: critical 3, high 2, normal 1, low 0
    turn = min(turn, deadline − age)                                     with a deadline
    turn = max(turn, submitted − 4 · age)                                so that nobody is ever starved

The smallest turn is first. What is submitted more than four ages after a task comes after it, whatever it is.
"""

from collections.abc import Mapping
from typing import Final

from sandherd.contracts.names import derived_uuid
from sandherd.contracts.requests import TaskView
from spawner.tasks.record import TaskRecord

WEIGHTS: Final[Mapping[str, int]] = {"critical": 3, "high": 2, "normal": 1, "low": 0}
MOST_DEPENDANTS: Final = 10
"""So many tasks that wait for one are worth a step of priority; more are worth no more."""
MOST_STEPS: Final = 4
"""What a task can be ahead of its submission at the most, in ages."""

Place = tuple[float, float, str, str]
"""Where a task stands: its turn, when it was submitted (both in seconds since 1970), its project and its name."""


def turn_of(task: TaskView, dependants: int, age: float) -> float:
    """The task's turn, in seconds since 1970. `age` is what a step of priority is worth, in seconds."""
    submitted = task.submitted_at.timestamp()
    turn = submitted - age * (WEIGHTS.get(task.priority, 1) + min(dependants, MOST_DEPENDANTS) / MOST_DEPENDANTS)
    if task.deadline is not None:
        turn = min(turn, task.deadline.timestamp() - age)
    return max(turn, submitted - MOST_STEPS * age)


def place_of(task: TaskView, dependants: int, age: float) -> Place:
    """Where the task stands among all that wait. Of equal turns, the one that was submitted first is first."""
    return turn_of(task, dependants, age), task.submitted_at.timestamp(), task.project, task.task


def score_of(turn: float, now: float, age: float) -> float:
    """The same as people read it: the higher, the earlier. It grows by one with each age of waiting."""
    return (now - turn) / age


def sandbox_name(task: TaskRecord) -> str:
    """The sandbox of the task's current attempt: always the same, so that making it twice makes one."""
    number = derived_uuid(task.submitted_at, "sandbox", task.project, task.task, task.life, task.attempt).int
    return f"sbx-{_base32(number)}"


def _base32(value: int) -> str:
    """26 characters of Crockford's base 32, ordered like the number."""
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[value >> shift & 31] for shift in range(125, -1, -5))
