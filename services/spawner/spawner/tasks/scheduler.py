"""Assigns sandboxes to pending tasks as soon as a task is submitted or capacity is free; one replica at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import run_until_first
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, TaskState
from sandherd.telemetry import logs
from spawner.live_state import LiveState, task_key
from spawner.records.store import StoredRecord
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.last_events import SAVED_WITHIN
from spawner.sandboxes.reconciler import FOR_NOW
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks import task_transitions as of_task
from spawner.tasks.scheduling_order import sandbox_name
from spawner.tasks.task_inputs import with_results
from spawner.tasks.task_queue import TaskQueue
from spawner.tasks.task_reaper import TaskEnd, TaskReaper
from spawner.tasks.task_record import TaskFacts, TaskRecord

NewSandboxRecord = Callable[[TaskRecord, str, datetime], Awaitable[SandboxRecord | None]]
"""Returns a new record for a sandbox with this name, for the task's current attempt. The record is not stored yet.

Returns None while the task's checkout is being prepared. The task's record changes when the checkout is prepared.
"""

_RETRY_DELAY: Final = timedelta(seconds=1)
"""Delay before another attempt to begin a task that could not begin for a reason unknown to the queue."""
_MIN_REST_SECONDS: Final = 0.2
_LAST_EVENTS_GRACE: Final = SAVED_WITHIN
"""How long to wait for the previous attempt's last events after its sandbox has ended."""
_CHECK_SECONDS: Final = 0.3
"""How long the check for unhandled events of agents may delay other tasks."""
_log: Final = logs.get("scheduler")


class Scheduler:
    """Schedules while it holds its lease. `assigned` is called with the key of each sandbox that must be created."""

    def __init__(
        self,
        live: LiveState,
        queue: TaskQueue,
        lease: Lease,
        *,
        admission: Admission,
        new_record: NewSandboxRecord,
        assigned: Callable[[str], None],
        settled: Callable[[], Awaitable[bool]],
        interval: float,
    ) -> None:
        """`settled` returns whether all events of agents so far were handled."""
        self._live = live
        self._queue = queue
        self._lease = lease
        self._admission = admission
        self._new_record = new_record
        self._assigned = assigned
        self._interval = interval
        self._settled = settled
        self._reaper = TaskReaper(live, queue, settled)
        self._fence = 0
        self._wake = asyncio.Event()
        self._attempts_overdue = asyncio.Event()
        live.task_index.on_change(self._on_task)
        live.sandbox_index.on_change(self._on_sandbox)
        live.project_index.on_change(lambda *_: self._wake.set())

    async def run(self) -> None:
        """Run until cancelled."""
        indexes = (self._live.task_index, self._live.sandbox_index, self._live.project_index)
        await asyncio.gather(*(index.complete.wait() for index in indexes))
        await run_until_first(self._schedule(), self._check_attempts())

    async def _schedule(self) -> None:
        while True:
            if not self._lease.held:
                self._live.meters.hide("sandherd_queue_age_seconds")  # another replica exports this gauge now
            await self._lease.wait_held()
            self._wake.clear()
            try:
                await self.tick()
            except LeaseLostError as error:
                _log.info("lease lost to another replica", lease=str(error))
            except FOR_NOW as error:
                _log.warning("scheduling failed, retrying", error=repr(error))
            await self._rest()

    async def _check_attempts(self) -> None:
        """End overdue attempts. Concurrent with scheduling, because the check for unhandled events may take long."""
        while True:
            await self._attempts_overdue.wait()
            self._attempts_overdue.clear()
            try:
                await self._reaper.end_overdue_attempts(self._fenced_change(self._fence))
            except LeaseLostError as error:
                _log.info("lease lost to another replica", lease=str(error))
            except FOR_NOW as error:
                _log.warning("time limits not checked, retrying", error=repr(error))

    async def tick(self) -> None:
        """Fail tasks that can never begin, and begin those for which there is capacity. Raises `LeaseLostError`."""
        if self._fence != self._lease.fence:
            # The previous lease holder may have made changes that we have not received yet.
            await self._live.catch_up()
            self._fence = self._lease.fence
        fence = self._fence
        if await self._reaper.end_pending(self._fenced_change(fence)):
            self._attempts_overdue.set()
        while (task := self._next()) is not None:
            self._lease.check()
            await self._try_start(task, fence)

    def _next(self) -> TaskFacts | None:
        started_at = time.perf_counter()
        task = self._queue.next(self._live.now())
        if task is not None:
            self._live.meters.observe("sandherd_schedule_seconds", time.perf_counter() - started_at)
        return task

    async def _try_start(self, task: TaskFacts, fence: int) -> None:
        now = self._live.now()
        # If the task can't begin now (our index is outdated, or the bucket is unavailable), others are tried first.
        self._queue.defer(task_key(task), now + _RETRY_DELAY)
        try:
            await self._start(task_key(task), now, fence)
        except (LeaseLostError, *FOR_NOW):
            raise
        except Exception as error:  # noqa: BLE001  # one task must not block all others; it is retried
            _log.error("task not started, retrying", task=task_key(task), exc_info=error)

    async def _start(self, key: str, now: datetime, fence: int) -> None:
        """Store the sandbox's record, then the task's record, which names the sandbox; then have it created."""
        held = await self._live.tasks.newest(key)
        if held is None or held.record.state is not TaskState.PENDING or not await self._is_free(held.record, now):
            return
        self._check_token(held.record, fence)
        task = await with_results(self._live, held.record, now, self._is_caught_up)
        if isinstance(task, str):
            await self._fail(held.record, task, now, fence)
        if not isinstance(task, TaskRecord):
            return
        new = await self._new_record(task, sandbox_name(task), now)
        sandbox = await self._create(new) if new else None
        if sandbox is None:
            return

        def decide(record: TaskRecord) -> TaskRecord:
            waits = record.state is TaskState.PENDING and record.attempt == sandbox.record.attempt
            return of_task.assigned(record, sandbox.record.sandbox, now) if waits else record

        await self._assign(held, decide, fence)
        self._observe_wait(held.record, now)
        # The sandbox is created first. The events in the record are published while the worker starts.
        self._assigned(sandbox.record.key)

    async def _create(self, record: SandboxRecord) -> StoredRecord[SandboxRecord] | None:
        """Store the sandbox's record. Without capacity, returns the record of a previous scheduler, or None."""
        async with self._admission.admit(record) as exhausted:
            if exhausted:
                return await self._live.sandboxes.load(record.key)
            self._lease.check()
            return (await self._live.sandboxes.create(record))[0]

    async def _assign(
        self, held: StoredRecord[TaskRecord], decide: Callable[[TaskRecord], TaskRecord], fence: int
    ) -> None:
        """Replace the record that was read. If it has changed since, repeat the decision with the newer record."""
        self._lease.check()
        stamped = decide(held.record).model_copy(update={"scheduled_by": fence})
        if await self._live.tasks.replace(held, stamped) is None:
            await self._change(held.record.key, decide, fence, publish=False)

    async def _is_free(self, task: TaskRecord, now: datetime) -> bool:
        """Whether the previous attempt's sandbox has ended, so that a task is never in two sandboxes at once.

        Its last events must be handled, too, because the next attempt gets the artifacts that they name.
        """
        if task.previous is None:
            return True
        previous_sandbox = await self._live.sandboxes.load(f"{task.project}.{task.previous.sandbox}")
        if previous_sandbox is None or previous_sandbox.record.ended_at is None:
            return previous_sandbox is None
        return now >= previous_sandbox.record.ended_at + _LAST_EVENTS_GRACE or await self._is_caught_up()

    async def _fail(self, task: TaskRecord, error: str, now: datetime, fence: int) -> None:
        def decide(record: TaskRecord) -> TaskRecord:
            waits = record.state is TaskState.PENDING and record.attempt == task.attempt
            return of_task.failed(record, error, ErrorType.DEPENDENCY_FAILED, now) if waits else record

        await self._change(task.key, decide, fence, publish=True)

    async def _is_caught_up(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECONDS):
                return await self._settled()
        return False

    async def _change(self, key: str, decide: Callable[[TaskRecord], TaskRecord], fence: int, *, publish: bool) -> None:
        """Write with our fencing token. Raises `LeaseLostError` if the lease is lost or the record has a newer one."""

        def decide_fenced(record: TaskRecord) -> TaskRecord:
            self._check_token(record, fence)
            changed = decide(record)
            return changed if changed is record else changed.model_copy(update={"scheduled_by": fence})

        self._lease.check()
        await self._live.change_task(key, decide_fenced, publish=publish)

    def _check_token(self, record: TaskRecord, fence: int) -> None:
        if record.scheduled_by > fence:
            raise LeaseLostError(self._lease.key)

    def _fenced_change(self, fence: int) -> TaskEnd:
        async def change(key: str, decide: Callable[[TaskRecord], TaskRecord]) -> None:
            await self._change(key, decide, fence, publish=True)

        return change

    def _observe_wait(self, task: TaskRecord, now: datetime) -> None:
        wait_seconds = (now - (task.not_before or task.submitted_at)).total_seconds()
        self._live.meters.observe("sandherd_task_wait_seconds", max(0.0, wait_seconds), priority=task.spec.priority)

    async def _rest(self) -> None:
        oldest, now = self._queue.oldest(), self._live.now()
        self._live.meters.set("sandherd_queue_age_seconds", max(0.0, now.timestamp() - oldest) if oldest else 0.0)
        due = self._queue.wakes_at()
        wait = self._interval if due is None else max(_MIN_REST_SECONDS, (due - now).total_seconds())
        with suppress(TimeoutError):
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the awaited result.
            async with asyncio.timeout(min(wait, self._interval)):
                await self._wake.wait()

    def _on_task(self, _key: str, task: TaskFacts) -> None:
        # Other tasks may depend on an ended task.
        if task.state is TaskState.PENDING or task.state in TASK_ENDED:
            self._wake.set()

    def _on_sandbox(self, _key: str, view: SandboxView) -> None:
        if view.state in SANDBOX_ENDED:
            self._wake.set()
