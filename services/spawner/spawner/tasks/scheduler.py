"""Gives waiting tasks their sandboxes, as soon as one is submitted or a place is free; one replica at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.bus.together import together
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, TaskState
from sandherd.telemetry import logs
from spawner.live import Live, task_key
from spawner.records.store import Held
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.keeper import FOR_NOW
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks import decisions as of_task
from spawner.tasks.judge import Change, Judge
from spawner.tasks.queue import Queue
from spawner.tasks.record import TaskFacts, TaskRecord
from spawner.tasks.scheduling import sandbox_name

Intend = Callable[[TaskRecord, str, datetime], Awaitable[SandboxRecord]]
"""Makes the record of the sandbox of this name, for the task's current attempt; it is not written yet."""

_SOON: Final = timedelta(seconds=1)
"""When a task is looked at again that could not begin though nothing seems to keep it from that."""
_SHORTEST_REST: Final = 0.2
_PATIENCE: Final = timedelta(seconds=30)
"""So long the last words of an attempt before are waited for, once its sandbox has ended."""
_GLANCE: Final = 0.3
"""So long all others wait for that, in seconds."""
_log: Final = logs.get("scheduler")


class Scheduler:
    """Runs while it holds its lease. `assigned(sandbox key)` is told of each sandbox that is to be made."""

    def __init__(
        self,
        live: Live,
        queue: Queue,
        lease: Lease,
        *,
        admission: Admission,
        intend: Intend,
        assigned: Callable[[str], None],
        settled: Callable[[], Awaitable[bool]],
        interval: float,
    ) -> None:
        self._live = live
        self._queue = queue
        self._lease = lease
        self._admission = admission
        self._intend = intend
        self._assigned = assigned
        self._interval = interval
        self._settled = settled
        self._judge = Judge(live, queue, settled)
        self._fence = 0
        self._wake = asyncio.Event()
        self._late = asyncio.Event()
        live.task_index.on_change(self._on_task)
        live.sandbox_index.on_change(self._on_sandbox)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(self._live.task_index.complete.wait(), self._live.sandbox_index.complete.wait())
        await together(self._schedule(), self._judge_attempts())

    async def _schedule(self) -> None:
        while True:
            if not self._lease.held:
                self._live.meters.forget("sandherd_queue_age_seconds")  # another replica shows it now
            await self._lease.wait_held()
            self._wake.clear()
            try:
                await self.tick()
            except LeaseLostError as error:
                _log.info("left to another replica", lease=str(error))
            except FOR_NOW as error:
                _log.warning("nothing assigned", error=repr(error))
            await self._rest()

    async def _judge_attempts(self) -> None:
        """Beside the scheduling: whether all was heard that agents have said may take a while to know."""
        while True:
            await self._late.wait()
            self._late.clear()
            try:
                await self._judge.judge_attempts(self._changing(self._fence))
            except LeaseLostError as error:
                _log.info("left to another replica", lease=str(error))
            except FOR_NOW as error:
                _log.warning("not judged", error=repr(error))

    async def tick(self) -> None:
        """Judge what waits in vain, and begin what there is room for. Raises `LeaseLostError`."""
        if self._fence != self._lease.fence:
            # Whoever held the lease before us may have done what we have not heard of yet.
            await self._live.catch_up()
            self._fence = self._lease.fence
        fence = self._fence
        if await self._judge.judge_pending(self._changing(fence)):
            self._late.set()
        while (task := self._next()) is not None:
            self._lease.check()
            await self._try_begin(task, fence)

    def _next(self) -> TaskFacts | None:
        begun = time.perf_counter()
        task = self._queue.next(self._live.now())
        if task is not None:
            self._live.meters.observe("sandherd_schedule_seconds", time.perf_counter() - begun)
        return task

    async def _try_begin(self, task: TaskFacts, fence: int) -> None:
        now = self._live.now()
        # If it does not begin now, because it is not as we know it or the bucket does not answer, it is not the next.
        self._queue.defer(task_key(task), now + _SOON)
        try:
            await self._begin(task_key(task), now, fence)
        except (LeaseLostError, *FOR_NOW):
            raise
        except Exception as error:  # noqa: BLE001  # one task must not keep all others waiting; it is tried again
            _log.error("a task could not begin", task=task_key(task), exc_info=error)

    async def _begin(self, key: str, now: datetime, fence: int) -> None:
        """Intent first: the sandbox's record, then the task that names it, and only then is a runtime asked."""
        held = await self._live.tasks.load(key)
        if held is None or held.record.state is not TaskState.PENDING or not await self._is_free(held.record, now):
            return
        self._check_token(held.record, fence)
        intent = await self._intend(held.record, sandbox_name(held.record), now)
        sandbox = await self._make(intent)
        if sandbox is None:
            return

        def decide(record: TaskRecord) -> TaskRecord:
            waits = record.state is TaskState.PENDING and record.attempt == sandbox.record.attempt
            return of_task.assigned(record, sandbox.record.sandbox, now) if waits else record

        await self._assign(held, decide, fence)
        self._measure(held.record, now)
        # Made first, told after: what it says goes out while the worker starts.
        self._assigned(sandbox.record.key)

    async def _make(self, intent: SandboxRecord) -> Held[SandboxRecord] | None:
        """The sandbox's record, or None if there is no room for it. What a scheduler before us made has its room."""
        async with self._admission.admit(intent) as lacking:
            if lacking:
                return await self._live.sandboxes.load(intent.key)
            self._lease.check()
            return (await self._live.sandboxes.create(intent))[0]

    async def _assign(self, held: Held[TaskRecord], decide: Callable[[TaskRecord], TaskRecord], fence: int) -> None:
        """Over what was read, as a rule; what was published in between is only a newer state of the same."""
        self._lease.check()
        stamped = decide(held.record).model_copy(update={"scheduled_by": fence})
        if await self._live.tasks.replace(held, stamped) is None:
            await self._change(held.record.key, decide, fence, publish=False)

    async def _is_free(self, task: TaskRecord, now: datetime) -> bool:
        """Whether the sandbox of the attempt before has ended, by its record: no task is ever in two at once.

        What it had put by is to be heard as well, for the next attempt is given it.
        """
        if task.previous is None:
            return True
        left = await self._live.sandboxes.load(f"{task.project}.{task.previous.sandbox}")
        if left is None or left.record.ended_at is None:
            return left is None
        return now >= left.record.ended_at + _PATIENCE or await self._is_settled()

    async def _is_settled(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GLANCE):
                return await self._settled()
        return False

    async def _change(self, key: str, decide: Callable[[TaskRecord], TaskRecord], fence: int, *, publish: bool) -> None:
        """Write with our token in it. Raises `LeaseLostError` if it is not good any more, or a newer one was here."""

        def decide_fenced(record: TaskRecord) -> TaskRecord:
            self._check_token(record, fence)
            changed = decide(record)
            return changed if changed is record else changed.model_copy(update={"scheduled_by": fence})

        self._lease.check()
        await self._live.change_task(key, decide_fenced, publish=publish)

    def _check_token(self, record: TaskRecord, fence: int) -> None:
        if record.scheduled_by > fence:
            raise LeaseLostError(self._lease.key)

    def _changing(self, fence: int) -> Change:
        async def change(key: str, decide: Callable[[TaskRecord], TaskRecord]) -> None:
            await self._change(key, decide, fence, publish=True)

        return change

    def _measure(self, task: TaskRecord, now: datetime) -> None:
        waited = (now - (task.not_before or task.submitted_at)).total_seconds()
        self._live.meters.observe("sandherd_task_wait_seconds", max(0.0, waited), priority=task.spec.priority)

    async def _rest(self) -> None:
        oldest, now = self._queue.oldest(), self._live.now()
        self._live.meters.set("sandherd_queue_age_seconds", max(0.0, now.timestamp() - oldest) if oldest else 0.0)
        due = self._queue.wakes_at()
        wait = self._interval if due is None else max(_SHORTEST_REST, (due - now).total_seconds())
        with suppress(TimeoutError):
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with what it waits for.
            async with asyncio.timeout(min(wait, self._interval)):
                await self._wake.wait()

    def _on_task(self, _key: str, task: TaskFacts) -> None:
        # An ended one may be what others wait for.
        if task.state is TaskState.PENDING or task.state in TASK_ENDED:
            self._wake.set()

    def _on_sandbox(self, _key: str, view: SandboxView) -> None:
        if view.state in SANDBOX_ENDED:
            self._wake.set()
