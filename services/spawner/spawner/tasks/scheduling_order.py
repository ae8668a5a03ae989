"""Scheduling order: each pending task has a scheduling time, which does not depend on the current time.

All functions are pure; see docs/scheduling.md.

    scheduling_time = submitted − age · (weight + min(dependants, 10) / 10)  weight: critical 3, high 2, normal 1, low 0
    scheduling_time = min(scheduling_time, deadline − age)                   with a deadline
    scheduling_time = max(scheduling_time, submitted − 4 · age)              so that no task starves

The task with the earliest scheduling time is first. A task submitted more than four ages after another is always
scheduled after it.
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
"""Maximum by which a task's scheduling time precedes its submission, in ages."""

QueuePosition = tuple[float, float, str, str]
"""A task's sort key: its scheduling time and its submission (in seconds since 1970), its project and its name."""


def scheduling_time_of(task: TaskView, dependants: int, age: float) -> float:
    """The task's scheduling time, in seconds since 1970. `age` is the seconds that one step of priority is worth."""
    submitted = task.submitted_at.timestamp()
    steps = WEIGHTS.get(task.priority, 1) + min(dependants, MAX_DEPENDANTS) / MAX_DEPENDANTS
    scheduling_time = submitted - age * steps
    if task.deadline is not None:
        scheduling_time = min(scheduling_time, task.deadline.timestamp() - age)
    return max(scheduling_time, submitted - MAX_STEPS * age)


def position_of(task: TaskView, dependants: int, age: float) -> QueuePosition:
    """The task's sort key among pending tasks. If scheduling times are equal, the task submitted first is first."""
    return scheduling_time_of(task, dependants, age), task.submitted_at.timestamp(), task.project, task.task


def score_of(scheduling_time: float, now: float, age: float) -> float:
    """The scheduling time as a score for users. A higher score is first. It grows by one with each `age` of waiting."""
    return (now - scheduling_time) / age


def sandbox_name(task: TaskRecord) -> str:
    """The name of the sandbox of the task's current attempt. Deterministic: a repetition creates no second sandbox."""
    number = derived_uuid(task.submitted_at, "sandbox", task.project, task.task, task.life, task.attempt).int
    return f"sbx-{_base32(number)}"


def _base32(value: int) -> str:
    """The number as 26 characters of Crockford's base 32, which sort like the numbers."""
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[value >> shift & 31] for shift in range(125, -1, -5))
