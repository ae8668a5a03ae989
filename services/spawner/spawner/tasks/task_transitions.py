"""State changes of a task: pure functions that return its record after something has happened."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sandherd.contracts.attempt_inputs import StoredSession
from sandherd.contracts.commands import CancelTask, SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.agent import AgentFailed, Outcome
from sandherd.contracts.events.task import (
    TaskAssigned,
    TaskCancelled,
    TaskCompleted,
    TaskFailed,
    TaskRunning,
    TaskSubmitted,
)
from sandherd.contracts.repositories import Checkout
from sandherd.contracts.states import TaskState
from sandherd.telemetry.traceparents import request_span
from spawner.tasks.resolved_task import DEFAULT_SETTINGS, ResolvedTask
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.task_retry import is_retried, retry_scheduled
from spawner.tasks.time_limits import limit_of, timeout_events

MAX_TEXT: Final = 4000
"""Maximum characters of an agent's final output in a task's result; the events have all of it."""
_NOT_RESULT: Final = frozenset({"turn", "success", "error", "error_type", "signal"})


def submitted(
    command: Envelope[SubmitTask], at: datetime, trace: str, terms: ResolvedTask = DEFAULT_SETTINGS
) -> TaskRecord:
    """A new pending task. `at` is when the broker stored the command, which is the same for each of its deliveries."""
    task = command.data
    traceparent, parent = request_span(command.traceparent or trace, command.id.hex)
    record = TaskRecord(
        project=command.project,
        traceparent=traceparent,
        parent=parent,
        task=task.task,
        life=command.id.hex,
        spec=terms.full_spec(task.spec),
        runtime=terms.runtime,
        limits=terms.limits,
        budget=terms.budget,
        defaults=terms.defaults,
        constraints=terms.constraints,
        max_attempts=terms.max_attempts,
        attempt_seconds=terms.attempt_seconds,
        keep_secrets=terms.keep_secrets,
        submitted_by=task.submitted_by,
        submitted_at=at,
    )
    return record.with_events(
        at,
        TaskSubmitted(
            task=task.spec.text,
            harness=record.harness_kind,
            runtime=terms.runtime,
            priority=task.spec.priority,
            submitted_by=task.submitted_by,
            depends_on=list(task.spec.depends_on),
            deadline=task.spec.deadline,
            max_attempts=terms.max_attempts,
            profile=task.spec.profile,
            resumes=task.spec.resume.task if task.spec.resume else None,
            work=task.spec.work,
            repository=record.repository.shown if record.repository else None,
            labels=task.spec.labels,
        ),
    )


def same_task(record: TaskRecord, command: Envelope[SubmitTask], terms: ResolvedTask = DEFAULT_SETTINGS) -> bool:
    """Whether the command requests the same task as the record.

    Secrets and files of an ended task may be erased. If it has any, only the command that created it is the same.
    """
    if record.life == command.id.hex:
        return True
    task = command.data
    if record.ended and (task.spec.secret_env or task.spec.files):
        return False
    return record.spec == terms.full_spec(task.spec) and record.submitted_by == task.submitted_by


def on_branch(record: TaskRecord, branch: str, life: str) -> TaskRecord:
    """The task with this branch. Unchanged if it has a branch, or if it is another task of the same name."""
    return record if record.branch or record.life != life else record.model_copy(update={"branch": branch})


def with_checkout(record: TaskRecord, branch: str, checkout: Checkout, attempt: int, now: datetime) -> TaskRecord:
    """The task after the checkout of this attempt was prepared; unchanged if it does not wait for this checkout."""
    if record.state is not TaskState.PENDING or record.attempt != attempt or record.branch != branch:
        return record
    return record.model_copy(update={"checkout": checkout, "prepared_at": now, "waits_because": None})


def waiting_because(record: TaskRecord, reason: str) -> TaskRecord:
    """The pending task, with the reason why its checkout can't be prepared yet."""
    waits = record.state is TaskState.PENDING and record.waits_because != reason
    return record.model_copy(update={"waits_because": reason}) if waits else record


def assigned(record: TaskRecord, sandbox: str, now: datetime) -> TaskRecord:
    """The task after a sandbox was assigned to it."""
    waited = _milliseconds(record.not_before or record.submitted_at, now)
    new_record = record.entering(TaskState.ASSIGNED, sandbox=sandbox, assigned_at=now, not_before=None)
    return new_record.with_events(now, TaskAssigned(attempt=record.attempt, sandbox=sandbox, waited_ms=waited))


def running(record: TaskRecord, sandbox: str, now: datetime) -> TaskRecord:
    """The task after its agent started."""
    new_record = record.entering(TaskState.RUNNING, started_at=now)
    started = _milliseconds(record.submitted_at, now)
    return new_record.with_events(now, TaskRunning(attempt=record.attempt, sandbox=sandbox, started_ms=started))


def ended(record: TaskRecord, sandbox: str, outcome: Outcome, now: datetime) -> TaskRecord:
    """The task after its agent reported how it ended."""
    result = result_of(outcome)
    if isinstance(outcome, AgentFailed):
        return attempt_failed(record, outcome.error, outcome.error_type, now, result=result)
    new_record = record.entering(TaskState.COMPLETED, ended_at=now, result=result)
    event = TaskCompleted(attempt=record.attempt, sandbox=sandbox, result=result)
    return new_record.with_events(now, event).forgetting()


def attempt_failed(
    record: TaskRecord, error: str, error_type: str, now: datetime, *, result: dict[str, Any] | None = None
) -> TaskRecord:
    """The task after its attempt failed: retried if the error is transient and an attempt is left, else failed."""
    record_with_events = record.with_events(now, *timeout_events(record, error_type))
    if is_retried(record, error_type):
        return retry_scheduled(record_with_events, error, error_type, now)
    return failed(record_with_events, error, error_type, now, result=result)


def timed_out(record: TaskRecord, now: datetime) -> TaskRecord:
    """The task after a time limit expired; unchanged if none has."""
    limit = limit_of(record)
    if limit is None or now < limit.over_at:
        return record
    return attempt_failed(record, limit.error, limit.error_type, now)


def failed(
    record: TaskRecord, error: str, error_type: str, now: datetime, *, result: dict[str, Any] | None = None
) -> TaskRecord:
    """The task after it failed finally."""
    new_record = record.entering(
        TaskState.FAILED, ended_at=now, error=error, error_type=error_type, result=result or record.result
    )
    event = TaskFailed(attempt=record.attempt, sandbox=record.sandbox, error=error, error_type=error_type)
    return new_record.with_events(now, event).unfinished(now)


def with_saved_work(record: TaskRecord, sandbox: str, saved: Mapping[str, ArtifactRef | StoredSession]) -> TaskRecord:
    """The task after this sandbox saved its `work`, `transcript` or `session` (the keys of `saved`).

    Unchanged if the sandbox belongs neither to the current attempt nor to the one before.
    """
    if not accepts_saved_work(record, sandbox):
        return record
    if record.sandbox == sandbox:
        changed = record.model_copy(update=dict(saved))
    else:
        previous = record.previous and record.previous.model_copy(update=dict(saved))
        changed = record.model_copy(update={"previous": previous})
    return record if changed == record else changed


def accepts_saved_work(record: TaskRecord, sandbox: str) -> bool:
    """Whether artifacts that this sandbox saves are used: it belongs to the current attempt or to the one before."""
    return sandbox in {record.sandbox, record.previous.sandbox if record.previous else None}


def accepts_commits(record: TaskRecord, sandbox: str) -> bool:
    """Whether commits that this sandbox saves are added to the task's branch: no later attempt works on it."""
    if record.sandbox is None:
        return record.previous is not None and record.previous.sandbox == sandbox
    return record.sandbox == sandbox


def cancelled(record: TaskRecord, command: CancelTask, now: datetime, by: str | None = None) -> TaskRecord:
    """The task after it was cancelled by the command `by`.

    Unchanged if it has ended, or if this command has cancelled it before.
    """
    if record.ended or (by is not None and record.cancelled_by == by):
        return record
    new_record = record.entering(
        TaskState.CANCELLED, ended_at=now, error=command.reason or None, error_type="cancelled", cancelled_by=by
    )
    event = TaskCancelled(
        attempt=record.attempt, sandbox=record.sandbox, reason=command.reason, cancelled_by=command.cancelled_by
    )
    return new_record.with_events(now, event).unfinished(now)


def secrets_expired(record: TaskRecord, now: datetime) -> TaskRecord:
    """The task without secrets if the time for which they are stored for a retry has expired; else unchanged."""
    return record if record.secrets_until is None or now < record.secrets_until else record.without_secrets()


def result_of(outcome: Outcome) -> dict[str, Any]:
    """The part of the agent's final event that is stored as the task's result. Default values are omitted."""
    found = outcome.model_dump(mode="json", exclude_defaults=True, exclude=set(_NOT_RESULT))
    if outcome.final_output:
        found["final_output"] = outcome.final_output[:MAX_TEXT]
    return found


def _milliseconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds() * 1000)
