"""Decides which due times of a schedule start a task, and which are skipped or missed.

Functions that return a record are named for its state: `paused(record, ...)` returns the paused record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Final

from sandherd.contracts.requests import ScheduleRun
from sandherd.contracts.schedules import RunOutcome, ScheduleSpec
from spawner.schedules.due_times import due_times
from spawner.schedules.schedule_record import ScheduledStart, ScheduleRecord

MAX_STARTS: Final = 100
"""Maximum due times that start a task each after an outage, with the overlap policy `allow`."""
_MISSED: Final = "no spawner ran until the end of the catch-up window"
_TOO_MANY: Final = f"more than {MAX_STARTS} were due at once"
_EARLIER_TASK_RUNNING: Final = "an earlier task had not ended"
_LATER_TIME_DUE: Final = "a later time was due, too"
_TASK_WAITING: Final = "a task was waiting already"
"""The reasons why due times start no task, as users see them."""


@dataclass(frozen=True)
class DueDecision:
    """The decision about the due times up to `decided`."""

    decided: datetime
    waiting: datetime | None = None
    """The due time whose task starts when the running one has ended."""
    start: datetime | None = None
    """The due time whose task is started now."""
    cancel: bool = False
    """Whether the schedule's other tasks are cancelled before that start."""
    not_started: tuple[ScheduleRun, ...] = ()
    """The due times that start no task, with the reason."""


@dataclass(frozen=True)
class DuePosition:
    """The last decided due time of a schedule, and the due time that waits for the end of the running task."""

    decided: datetime
    waiting: datetime | None = None


def decide(spec: ScheduleSpec, position: DuePosition, now: datetime, *, running: bool) -> DueDecision | None:
    """The next decision, or None if nothing is due. The caller repeats this with the new position until it gets None.

    `running` is whether an earlier task of the schedule has not ended.
    """
    window_start = now - timedelta(seconds=spec.catch_up_seconds)
    first = next(due_times(spec.cron, spec.time_zone, position.decided), None)
    if first is not None and first < window_start <= now:
        # Only the first missed time is recorded, because there may be a large number of them.
        return DueDecision(
            _just_before(window_start),
            position.waiting,
            not_started=(_run_without_task([first], "missed", now, _MISSED),),
        )
    due = list(takewhile(lambda at: at <= now, due_times(spec.cron, spec.time_zone, position.decided)))
    if position.waiting is not None and not running:
        return DueDecision(position.decided, start=position.waiting)
    return _by_policy(spec, position, due, now, running=running) if due else None


def _by_policy(
    spec: ScheduleSpec, position: DuePosition, due: Sequence[datetime], now: datetime, *, running: bool
) -> DueDecision:
    """The decision by the overlap policy. `due` are the due times that have passed, at least one."""
    first, last = due[0], due[-1]
    if spec.overlap == "allow":
        surplus = due[:-MAX_STARTS]
        return (
            DueDecision(surplus[-1], not_started=_runs_without_task(surplus, "missed", now, _TOO_MANY))
            if surplus
            else DueDecision(first, start=first)
        )
    if spec.overlap == "cancel_other":
        return DueDecision(
            last, start=last, cancel=running, not_started=_runs_without_task(due[:-1], "skipped", now, _LATER_TIME_DUE)
        )
    if not running:
        return DueDecision(first, start=first)
    if spec.overlap == "skip":
        return DueDecision(last, not_started=_runs_without_task(due, "skipped", now, _EARLIER_TASK_RUNNING))
    if position.waiting is not None:
        return DueDecision(last, position.waiting, not_started=_runs_without_task(due, "skipped", now, _TASK_WAITING))
    return DueDecision(last, first, not_started=_runs_without_task(due[1:], "skipped", now, _TASK_WAITING))


def _just_before(moment: datetime) -> datetime:
    return moment - timedelta(microseconds=1)


def _runs_without_task(
    due: Sequence[datetime], outcome: RunOutcome, now: datetime, reason: str
) -> tuple[ScheduleRun, ...]:
    return (_run_without_task(due, outcome, now, reason),) if due else ()


def _run_without_task(due: Sequence[datetime], outcome: RunOutcome, now: datetime, reason: str) -> ScheduleRun:
    return ScheduleRun(due_at=due[0], outcome=outcome, at=now, due_times=len(due), reason=reason)


def next_decision(record: ScheduleRecord, now: datetime, *, running: bool) -> DueDecision | None:
    """The next decision about the schedule of a record (see `decide`); None while it is paused."""
    if record.paused:
        return None
    return decide(record.spec, DuePosition(record.decided, record.waiting), now, running=running)


def decided(record: ScheduleRecord, decision: DueDecision, now: datetime) -> ScheduleRecord:
    """The record after a decision. It contains the start of the task, if the decision is to start one."""
    starts = record.starts
    if decision.start is not None:
        starts = (*starts, due_start(record, decision.start, now, cancel=decision.cancel))
    update = {"decided": decision.decided, "waiting": decision.waiting, "starts": starts}
    return record.with_runs(*decision.not_started).model_copy(update=update)


def due_start(record: ScheduleRecord, due: datetime, now: datetime, *, cancel: bool) -> ScheduledStart:
    """The start of a task at a due time. Its name contains the due time, so that each due time has only one task."""
    return ScheduledStart(
        task=f"{record.schedule}-{due.astimezone(UTC):%Y%m%dt%H%Mz}", due_at=due, at=now, cancel=cancel
    )


def triggered_start(record: ScheduleRecord, now: datetime) -> ScheduledStart:
    """The start that a user requests. The task's name has seconds, so no due time's task has the same name."""
    task = f"{record.schedule}-{now.astimezone(UTC):%Y%m%dt%H%M%Sz}"
    return ScheduledStart(task=task, due_at=now, at=now, triggered=True)


def finished(record: ScheduleRecord, start: ScheduledStart, run: ScheduleRun) -> ScheduleRecord:
    """The record after a start was carried out, refused or missed; unchanged if that is recorded already."""
    if start not in record.starts:
        return record
    remaining = tuple(other for other in record.starts if other != start)
    return record.with_runs(run).model_copy(update={"starts": remaining})


def run_of(start: ScheduledStart, outcome: RunOutcome, now: datetime, reason: str | None = None) -> ScheduleRun:
    """The outcome of a start."""
    return ScheduleRun(
        due_at=start.due_at, outcome=outcome, at=now, task=start.task, triggered=start.triggered, reason=reason
    )


def paused(record: ScheduleRecord, now: datetime, *, wanted: bool) -> ScheduleRecord:
    """The record of a schedule that is paused (`wanted`) or resumed; unchanged if it has this state already.

    Due times until now are not considered later.
    """
    if record.paused == wanted:
        return record
    return record.model_copy(update={"paused": wanted, "decided": now, "waiting": None, "updated_at": now})
