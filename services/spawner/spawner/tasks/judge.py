"""Ends what can't go on: tasks that wait for what will not come, and those of which a limit of time is over."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from pydantic import ValidationError

from sandherd.contracts.failures import ErrorType
from sandherd.contracts.states import TaskState
from sandherd.telemetry import logs
from spawner.live import Live
from spawner.tasks import decisions as of_task
from spawner.tasks.queue import Queue
from spawner.tasks.record import TaskRecord

_PATIENCE: Final = timedelta(seconds=30)
"""So long an attempt that is over its limit is let be while its own end may still be on its way to us."""
_log: Final = logs.get("scheduler")
_SAID: Final = {TaskState.FAILED: "has failed", TaskState.CANCELLED: "was cancelled"}


class Change(Protocol):
    """Writes what `decide` makes of a task, under the scheduler's token."""

    async def __call__(self, key: str, decide: Callable[[TaskRecord], TaskRecord]) -> None:
        """Write it and publish what it says."""


class Judge:
    """Looks at what the queue points at, and decides by the records themselves."""

    def __init__(self, live: Live, queue: Queue, settled: Callable[[], Awaitable[bool]]) -> None:
        self._live = live
        self._queue = queue
        self._settled = settled
        self._began = live.now()
        """While no spawner was there, nobody could take in how an attempt ended."""

    async def judge_pending(self, change: Change) -> bool:
        """All that waits and need not. Returns whether attempts are over their limit, for `judge_attempts`."""
        for key in self._queue.doomed():
            try:
                await self._judge_dependencies(key, change)
            except ValidationError as error:
                # Written by a version that this one can't read: it is left alone, and keeps nobody else waiting.
                _log.error("what a task depends on can't be read", task=key, error=str(error)[:300])
        now = self._live.now()
        overdue = self._queue.overdue(now)
        for key in overdue:
            if self._waits(key):
                await change(key, lambda record: of_task.timed_out(record, now) if _waits(record) else record)
        return any(not self._waits(key) for key in overdue)

    async def judge_attempts(self, change: Change) -> None:
        """Attempts that are over their limit, unless their own end may still be on its way to us."""
        now = self._live.now()
        overdue = [key for key in self._queue.overdue(now) if not self._waits(key)]
        settled = bool(overdue) and await self._settled()
        for key in overdue:
            known = self._live.task_index.get(key)
            over_at = known.view.limit_at if known else None
            if over_at is not None and (settled or now >= max(over_at, self._began) + _PATIENCE):
                await change(key, lambda record: of_task.timed_out(record, now))

    def _waits(self, key: str) -> bool:
        known = self._live.task_index.get(key)
        return known is not None and known.view.state is TaskState.PENDING

    async def _judge_dependencies(self, key: str, change: Change) -> None:
        held = await self._live.tasks.load(key)
        verdict = await self._unmet(held.record) if held else None
        if verdict is None:
            return
        error, now = verdict, self._live.now()

        def decide(record: TaskRecord) -> TaskRecord:
            same = _waits(record) and held is not None and record.attempt == held.record.attempt
            return of_task.failed(record, error, ErrorType.DEPENDENCY_FAILED, now) if same else record

        await change(key, decide)

    async def _unmet(self, task: TaskRecord) -> str | None:
        """What it waits for in vain, in words: by the bucket, for what we know of it may be old."""
        for name in task.spec.depends_on:
            held = await self._live.tasks.load(f"{task.project}.{name}")
            said = "is gone" if held is None else _SAID.get(held.record.state)
            if said:
                return f"{name}, which it depends on, {said}"
        return None


def _waits(record: TaskRecord) -> bool:
    return record.state is TaskState.PENDING
