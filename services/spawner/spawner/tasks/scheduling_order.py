"""Scheduling order: a number for each pending task, its turn, which does not depend on the current time.

All functions are pure; see docs/scheduling.md.

    turn = submitted − age · (weight + min(dependants, 10) / 10)         weight: critical 3, high 2, normal 1, low 0
    turn = min(turn, deadline − age)                                     with a deadline
    turn = max(turn, submitted − 4 · age)                                so that no task starves

The smallest turn is first. A task submitted more than four ages after another is always scheduled after it.
"""

from collections.abc import Mapping
from typing import Final

from sandherd.contracts.names import derived_uuid
from sandherd.contracts.requests import TaskView
from spawner.tasks.task_record import TaskRecord

WEIGHTS: Final[Mapping[str, int]] = {"critical": 3, "high": 2, "normal": 1, "low": 0}
MAX_DEPENDANTS: Final = 10
"""Number of dependants that counts as one step of priority; more do not count."""
MAX_STEPS: Final = 4
"""Maximum by which a task's turn precedes its submission, in ages."""

QueuePosition = tuple[float, float, str, str]
"""A task's sort key: its turn and its submission (both in seconds since 1970), its project and its name."""


def turn_of(task: TaskView, dependants: int, age: float) -> float:
    """The task's turn, in seconds since 1970. `age` is the seconds that one step of priority is worth."""
    submitted = task.submitted_at.timestamp()
    turn = submitted - age * (WEIGHTS.get(task.priority, 1) + min(dependants, MAX_DEPENDANTS) / MAX_DEPENDANTS)
    if task.deadline is not None:
        turn = min(turn, task.deadline.timestamp() - age)
    return max(turn, submitted - MAX_STEPS * age)


def position_of(task: TaskView, dependants: int, age: float) -> QueuePosition:
    """The task's sort key among pending tasks. If turns are equal, the task that was submitted first is first."""
    return turn_of(task, dependants, age), task.submitted_at.timestamp(), task.project, task.task


def score_of(turn: float, now: float, age: float) -> float:
    """The turn as a score for users. A higher score begins earlier. It grows by one with each `age` of waiting."""
    return (now - turn) / age


def sandbox_name(task: TaskRecord) -> str:
    """The name of the sandbox of the task's current attempt. Deterministic: a repetition creates no second sandbox."""
    number = derived_uuid(task.submitted_at, "sandbox", task.project, task.task, task.life, task.attempt).int
    return f"sbx-{_base32(number)}"


def _base32(value: int) -> str:
    """The number as 26 characters of Crockford's base 32, which sort like the numbers."""
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[value >> shift & 31] for shift in range(125, -1, -5))
