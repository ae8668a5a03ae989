"""What becomes of a task, as pure functions: a record and a fact in, the next record out."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sandherd.contracts.commands import CancelTask, SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, Outcome
from sandherd.contracts.events.lifecycle import (
    TaskAssigned,
    TaskCancelled,
    TaskCompleted,
    TaskFailed,
    TaskRunning,
    TaskSubmitted,
)
from sandherd.contracts.offers import KeptSession
from sandherd.contracts.states import TaskState
from sandherd.telemetry.traceparents import begun_with
from spawner.tasks.record import TaskRecord
from spawner.tasks.retry import may_again, tried_again
from spawner.tasks.terms import PLAIN, Terms
from spawner.tasks.timing import limit_of, said_of

MOST_TEXT: Final = 4000
"""How many characters of an agent's last words stand in a task's result; the events have all of them."""
_NOT_RESULT: Final = frozenset({"turn", "success", "error", "error_type", "signal"})


def submitted(command: Envelope[SubmitTask], at: datetime, trace: str, terms: Terms = PLAIN) -> TaskRecord:
    """A new task that waits. `at` is when the broker took the command: the same for every delivery of it."""
    task = command.data
    traceparent, parent = begun_with(command.traceparent or trace, command.id.hex)
    record = TaskRecord(
        project=command.project,
        traceparent=traceparent,
        parent=parent,
        task=task.task,
        life=command.id.hex,
        spec=terms.whole(task.spec),
        runtime=terms.runtime,
        limits=terms.limits,
        max_attempts=terms.max_attempts,
        attempt_seconds=terms.attempt_seconds,
        keep_secrets=terms.keep_secrets,
        submitted_by=task.submitted_by,
        submitted_at=at,
    )
    return record.saying(
        at,
        TaskSubmitted(
            task=task.spec.text,
            harness=task.spec.harness.kind,
            runtime=terms.runtime,
            priority=task.spec.priority,
            submitted_by=task.submitted_by,
            depends_on=list(task.spec.depends_on),
            deadline=task.spec.deadline,
            max_attempts=terms.max_attempts,
            profile=task.spec.profile,
            resumes=task.spec.resume.task if task.spec.resume else None,
        ),
    )


def same_task(record: TaskRecord, command: Envelope[SubmitTask], terms: Terms = PLAIN) -> bool:
    """Whether the command asks for what the record already is, as far as that is known.

    Of a task that has ended, secrets and files are forgotten: then only the very command that began it is the same.
    """
    if record.life == command.id.hex:
        return True
    task = command.data
    if record.ended and (task.spec.secret_env or task.spec.files):
        return False
    return record.spec == terms.whole(task.spec) and record.submitted_by == task.submitted_by


def assigned(record: TaskRecord, sandbox: str, now: datetime) -> TaskRecord:
    """A sandbox is being made for it."""
    waited = _milliseconds(record.not_before or record.submitted_at, now)
    moved = record.entering(TaskState.ASSIGNED, sandbox=sandbox, assigned_at=now, not_before=None)
    return moved.saying(now, TaskAssigned(attempt=record.attempt, sandbox=sandbox, waited_ms=waited))


def running(record: TaskRecord, sandbox: str, now: datetime) -> TaskRecord:
    """Its agent has started."""
    moved = record.entering(TaskState.RUNNING, started_at=now)
    started = _milliseconds(record.submitted_at, now)
    return moved.saying(now, TaskRunning(attempt=record.attempt, sandbox=sandbox, started_ms=started))


def ended(record: TaskRecord, sandbox: str, outcome: Outcome, now: datetime) -> TaskRecord:
    """Its agent has said the end."""
    result = result_of(outcome)
    if isinstance(outcome, AgentFailed):
        return attempt_failed(record, outcome.error, outcome.error_type, now, result=result)
    moved = record.entering(TaskState.COMPLETED, ended_at=now, result=result)
    said = TaskCompleted(attempt=record.attempt, sandbox=sandbox, result=result)
    return moved.saying(now, said).forgetting()


def attempt_failed(
    record: TaskRecord, error: str, error_type: str, now: datetime, *, result: dict[str, Any] | None = None
) -> TaskRecord:
    """Its attempt has come to nothing: there is another, if that may help and one is left, or the task has failed."""
    told = record.saying(now, *said_of(record, error_type))
    if may_again(record, error_type):
        return tried_again(told, error, error_type, now)
    return failed(told, error, error_type, now, result=result)


def timed_out(record: TaskRecord, now: datetime) -> TaskRecord:
    """One of its limits of time is over, or nothing changes."""
    limit = limit_of(record)
    if limit is None or now < limit.over_at:
        return record
    return attempt_failed(record, limit.error, limit.error_type, now)


def failed(
    record: TaskRecord, error: str, error_type: str, now: datetime, *, result: dict[str, Any] | None = None
) -> TaskRecord:
    """It will not be done."""
    moved = record.entering(
        TaskState.FAILED, ended_at=now, error=error, error_type=error_type, result=result or record.result
    )
    said = TaskFailed(attempt=record.attempt, sandbox=record.sandbox, error=error, error_type=error_type)
    return moved.saying(now, said).unfinished(now)


def left(record: TaskRecord, sandbox: str, what: Mapping[str, ArtifactRef | KeptSession]) -> TaskRecord:
    """This sandbox has put by its `work`, `transcript` or `session`. Only the last attempt's is of use."""
    if not has_left(record, sandbox):
        return record
    if record.sandbox == sandbox:
        changed = record.model_copy(update=dict(what))
    else:
        previous = record.previous and record.previous.model_copy(update=dict(what))
        changed = record.model_copy(update={"previous": previous})
    return record if changed == record else changed


def has_left(record: TaskRecord, sandbox: str) -> bool:
    """Whether what this sandbox puts by is of use: it is of the current attempt, or of the one before."""
    return sandbox in {record.sandbox, record.previous.sandbox if record.previous else None}


def cancelled(record: TaskRecord, command: CancelTask, now: datetime) -> TaskRecord:
    """Somebody called it off. An ended task stays as it ended."""
    if record.ended:
        return record
    moved = record.entering(TaskState.CANCELLED, ended_at=now, error=command.reason or None, error_type="cancelled")
    said = TaskCancelled(
        attempt=record.attempt, sandbox=record.sandbox, reason=command.reason, cancelled_by=command.cancelled_by
    )
    return moved.saying(now, said).unfinished(now)


def secrets_expired(record: TaskRecord, now: datetime) -> TaskRecord:
    """The secrets that were stored for a retry are erased, or nothing changes."""
    return record if record.secrets_until is None or now < record.secrets_until else record.without_secrets()


def result_of(outcome: Outcome) -> dict[str, Any]:
    """What of the agent's end is kept with the task: what was said, and not what was left at its default."""
    found = outcome.model_dump(mode="json", exclude_defaults=True, exclude=set(_NOT_RESULT))
    if outcome.final_output:
        found["final_output"] = outcome.final_output[:MOST_TEXT]
    return found


def is_end(event: object) -> bool:
    """Whether this is one of the two ways in which an attempt ends."""
    return isinstance(event, AgentCompleted | AgentFailed)


def _milliseconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds() * 1000)
