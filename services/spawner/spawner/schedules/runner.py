"""Starts the tasks of schedules on the replica that holds the scheduler's lease."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.commands import CancelTask, SubmitTask
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.labels import BATCH_LABEL
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.requests import ScheduleRun
from sandherd.contracts.schedules import SCHEDULE_BATCH_PREFIX
from sandherd.contracts.states import TASK_ENDED
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.records.store import StoredRecord
from spawner.sandboxes.reconciler import FOR_NOW
from spawner.schedules import due_decisions
from spawner.schedules.due_times import due_times
from spawner.schedules.schedule_record import ScheduledStart, ScheduleRecord
from spawner.spec_resolution import Refusal
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_record import TaskFacts

Submit = Callable[[Envelope[SubmitTask], datetime], Awaitable[Refusal | None]]
"""Creates the task of a command, unless the command was submitted before. Returns why it is refused, or None."""

_MIN_WAIT_SECONDS: Final = 0.2
"""The minimum time until the next evaluation, unless a record changes."""
_NOT_STARTED: Final = "the spawner ended before it started the task"
_log: Final = logs.get("schedules")


class ScheduleRunner:
    """Starts tasks while it holds the lease. Each decision is stored before its task is created."""

    def __init__(
        self, live: LiveState, lease: Lease, submit: Submit, *, ids: DerivedIds, interval: float, keep_ended: float
    ) -> None:
        """`keep_ended` is how long the record of an ended task is stored, in seconds."""
        self._ids = ids
        self._live = live
        self._lease = lease
        self._submit = submit
        self._interval = interval
        self._keep_ended = timedelta(seconds=keep_ended)
        self._fence = 0
        """The fencing token of the lease at the last evaluation."""
        self._next_times: dict[str, tuple[datetime, datetime | None]] = {}
        """The next due time of each schedule by its key, with the `updated_at` of the record at that time."""
        self._wake = asyncio.Event()
        live.schedule_index.on_change(lambda _key, _record: self._wake.set())
        live.schedule_index.on_removal(self._on_removal)
        live.task_index.on_change(self._on_task)

    async def run(self) -> None:
        """Evaluate the schedules whenever one is due, until cancelled."""
        await asyncio.gather(self._live.task_index.complete.wait(), self._live.schedule_index.complete.wait())
        while True:
            await self._lease.wait_held()
            self._wake.clear()
            try:
                await self.tick()
            except LeaseLostError as error:
                _log.info("lease lost to another replica", lease=str(error))
            except FOR_NOW as error:
                _log.warning("schedules not evaluated, retrying", error=repr(error))
            await self._wait()

    async def tick(self) -> None:
        """Start the tasks that are due. Raises `LeaseLostError`, and the transient errors `FOR_NOW`."""
        if self._fence != self._lease.fence:
            # The previous lease holder may have made changes that this replica has not received yet.
            await self._live.catch_up()
            self._fence = self._lease.fence
        for key, known in self._live.schedule_index.items():
            record = known.view
            if record.starts or record.waiting is not None or self._is_due(key, record):
                await self._try_advance(key)

    async def _try_advance(self, key: str) -> None:
        try:
            await self._advance(key)
        except (LeaseLostError, *FOR_NOW):
            raise
        except Exception as error:  # noqa: BLE001  # one schedule must not block all others; it is retried
            _log.error("schedule not evaluated, retrying", key=key, exc_info=error)

    async def _advance(self, key: str) -> None:
        """Carry out the recorded starts, then make the next decision, until nothing is due."""
        while (held := await self._live.schedules.load(key)) is not None:
            for start in held.record.starts:
                await self._carry_out(held.record, start)
            if held.record.starts:
                continue  # read the record again: the starts were removed from it
            now = self._live.now()
            decision = due_decisions.next_decision(held.record, now, running=bool(self._running(held.record)))
            if decision is None:
                return
            self._lease.check()
            await self._write(held, decision, now)

    async def _write(
        self, held: StoredRecord[ScheduleRecord], decision: due_decisions.DueDecision, now: datetime
    ) -> None:
        """Write a decision into the record, unless the record has changed meanwhile."""
        if await self._live.schedules.replace(held, due_decisions.decided(held.record, decision, now)) is not None:
            for run in decision.not_started:
                self._report(held.record, run)

    async def _carry_out(self, record: ScheduleRecord, start: ScheduledStart) -> None:
        """Start the task, then replace the start by its outcome in the record."""
        self._lease.check()
        run = await self._start_task(record, start)
        self._lease.check()
        await self._live.schedules.change(record.key, lambda newest, _: due_decisions.finished(newest, start, run))
        self._report(record, run)

    async def _start_task(self, record: ScheduleRecord, start: ScheduledStart) -> ScheduleRun:
        now = self._live.now()
        existing = await self._live.tasks.load(f"{record.project}.{start.task}")
        if existing is None and now - start.at >= self._keep_ended:
            # The task may have been started, ended and deleted: it is not started again.
            return due_decisions.run_of(start, "missed", now, _NOT_STARTED)
        if start.cancel:
            await self._cancel_others(record, start, now)
        refused = await self._submit(submission(self._ids, record, start), start.at)
        return due_decisions.run_of(
            start, "refused" if refused else "started", now, refused.reason if refused else None
        )

    async def _cancel_others(self, record: ScheduleRecord, start: ScheduledStart, now: datetime) -> None:
        command = CancelTask(task=start.task, reason=f"{start.task} is due", cancelled_by=f"schedule {record.schedule}")
        for view in self._running(record):
            if view.task != start.task:
                key = f"{record.project}.{view.task}"
                await self._live.change_task(key, lambda task: of_task.cancelled(task, command, now))

    def _running(self, record: ScheduleRecord) -> list[TaskFacts]:
        """The tasks of a schedule that have not ended."""
        return [
            view
            for view in self._live.task_index.views()
            if view.project == record.project
            and view.labels.get(BATCH_LABEL) == record.batch
            and view.state not in TASK_ENDED
        ]

    def _report(self, record: ScheduleRecord, run: ScheduleRun) -> None:
        self._live.meters.count("sandherd_schedule_due_times_total", run.due_times, outcome=run.outcome)
        key, due_at = record.key, run.due_at.isoformat()
        if run.outcome == "started":
            _log.info("scheduled task started", key=key, due_at=due_at, task=run.task)
        else:
            _log.warning(
                "scheduled task not started",
                key=key,
                due_at=due_at,
                task=run.task,
                outcome=run.outcome,
                reason=run.reason,
            )

    def _is_due(self, key: str, record: ScheduleRecord) -> bool:
        due = self._next_time(key, record)
        return due is not None and due <= self._live.now()

    def _next_time(self, key: str, record: ScheduleRecord) -> datetime | None:
        """The first due time that is not decided yet, or None. It is computed only once after each decision."""
        if record.paused:
            return None
        known = self._next_times.get(key)
        if known is None or known[0] != record.updated_at or (known[1] is not None and known[1] <= record.decided):
            due = next(due_times(record.spec.cron, record.spec.time_zone, record.decided), None)
            known = self._next_times[key] = (record.updated_at, due)
        return known[1]

    async def _wait(self) -> None:
        """Wait until a schedule is due or has changed, or a task of a schedule has ended; at most the interval."""
        due = [self._next_time(key, known.view) for key, known in self._live.schedule_index.items()]
        now = self._live.now()
        delays = [max(_MIN_WAIT_SECONDS, (at - now).total_seconds()) for at in due if at is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(min([*delays, self._interval])):
                await self._wake.wait()

    def _on_removal(self, key: str) -> None:
        self._next_times.pop(key, None)

    def _on_task(self, _key: str, task: TaskFacts) -> None:
        if task.state in TASK_ENDED and task.labels.get(BATCH_LABEL, "").startswith(SCHEDULE_BATCH_PREFIX):
            self._wake.set()


def submission(ids: DerivedIds, record: ScheduleRecord, start: ScheduledStart) -> Envelope[SubmitTask]:
    """The command that submits the task of a start. Repeated calls return the same command."""
    command = SubmitTask(task=start.task, spec=record.task_spec(), submitted_by=f"schedule {record.schedule}")
    return wrap(
        command,
        command.type,
        source=record.source,
        sequence=1,
        project=record.project,
        subject=start.task,
        time=start.at,
        id=ids.derive(start.at, record.project, record.schedule, start.task, record.created_at),
        taskid=start.task,
    )
