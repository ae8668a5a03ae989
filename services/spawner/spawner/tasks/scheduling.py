"""Which tasks are next: a pure decision over what waits and what lives."""

import heapq
from collections.abc import Iterable, Sequence

from sandherd.contracts.names import derived_uuid
from sandherd.contracts.requests import TaskView
from spawner.tasks.record import TaskRecord


def next_tasks(pending: Iterable[TaskView], live: int, limit: int) -> Sequence[TaskView]:
    """The tasks to start now, oldest first, as long as no more than `limit` sandboxes live."""
    return heapq.nsmallest(max(0, limit - live), pending, key=lambda task: (task.submitted_at, task.project, task.task))


def sandbox_name(task: TaskRecord) -> str:
    """The sandbox of the task's current attempt: always the same, so that making it twice makes one."""
    number = derived_uuid(task.submitted_at, "sandbox", task.project, task.task, task.life, task.attempt).int
    return f"sbx-{_base32(number)}"


def _base32(value: int) -> str:
    """26 characters of Crockford's base 32, ordered like the number."""
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[value >> shift & 31] for shift in range(125, -1, -5))
