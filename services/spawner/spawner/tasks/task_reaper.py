"""Ends tasks whose dependencies can never be met, and tasks or attempts whose time limit has expired."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from pydantic import ValidationError

from sandherd.contracts.failures import ErrorType
from sandherd.contracts.states import TaskState
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_queue import TaskQueue
from spawner.tasks.task_record import TaskRecord

_FINAL_EVENT_GRACE: Final = timedelta(seconds=30)
"""How long an attempt may exceed its time limit while its own final event may still arrive."""
_log: Final = logs.get("task_reaper")
_END_TEXTS: Final = {TaskState.FAILED: "has failed", TaskState.CANCELLED: "was cancelled"}


class TaskEnd(Protocol):
    """Changes a task with `decide`, under the scheduler's fencing token."""

    async def __call__(self, key: str, decide: Callable[[TaskRecord], TaskRecord]) -> None:
        """Write the record and publish its events."""


class TaskReaper:
    """Checks the tasks that the queue reports, and decides by their records in the bucket.

    `settled` returns whether all events of agents so far were handled.
    """

    def __init__(self, live: LiveState, queue: TaskQueue, settled: Callable[[], Awaitable[bool]]) -> None:
        self._live = live
        self._queue = queue
        self._settled = settled
        self._began_at = live.now()
        """The grace period does not begin earlier, because final events are not handled while no spawner runs."""

    async def end_pending(self, change: TaskEnd) -> bool:
        """End pending tasks that can't start. Returns whether attempts have exceeded their time limit."""
        for key in self._queue.unstartable():
            try:
                await self._check_dependencies(key, change)
            except ValidationError as error:
                # A record of an incompatible version is left unchanged, and does not block other tasks.
                _log.error("dependencies of task unreadable", task=key, error=str(error)[:300])
        now = self._live.now()
        overdue = self._queue.overdue(now)
        for key in overdue:
            if self._is_pending(key):
                await change(key, lambda record: of_task.timed_out(record, now) if _is_pending(record) else record)
        return any(not self._is_pending(key) for key in overdue)

    async def end_overdue_attempts(self, change: TaskEnd) -> None:
        """End attempts that have exceeded their time limit, unless their own final event may still arrive."""
        now = self._live.now()
        overdue = [key for key in self._queue.overdue(now) if not self._is_pending(key)]
        settled = bool(overdue) and await self._settled()
        for key in overdue:
            known = self._live.task_index.get(key)
            over_at = known.view.limit_at if known else None
            if over_at is not None and (settled or now >= max(over_at, self._began_at) + _FINAL_EVENT_GRACE):
                await change(key, lambda record: of_task.timed_out(record, now))

    def _is_pending(self, key: str) -> bool:
        known = self._live.task_index.get(key)
        return known is not None and known.view.state is TaskState.PENDING

    async def _check_dependencies(self, key: str, change: TaskEnd) -> None:
        held = await self._live.tasks.load(key)
        verdict = await self._unmet_dependency(held.record) if held else None
        if verdict is None:
            return
        error, now = verdict, self._live.now()

        def decide(record: TaskRecord) -> TaskRecord:
            same = _is_pending(record) and held is not None and record.attempt == held.record.attempt
            return of_task.failed(record, error, ErrorType.DEPENDENCY_FAILED, now) if same else record

        await change(key, decide)

    async def _unmet_dependency(self, task: TaskRecord) -> str | None:
        """Why a dependency can't be met, or None. Read from the bucket, because our index may be outdated."""
        for name in task.spec.depends_on:
            held = await self._live.tasks.load(f"{task.project}.{name}")
            problem = "no longer exists" if held is None else _END_TEXTS.get(held.record.state)
            if problem:
                return f"its dependency {name} {problem}"
        return None


def _is_pending(record: TaskRecord) -> bool:
    return record.state is TaskState.PENDING
