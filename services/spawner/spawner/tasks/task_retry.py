"""Retries of a task: automatic with backoff after a transient failure, or requested by a user."""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sandherd.backoff import Backoff
from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.commands import RetryPolicy, RetryTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events.task import TaskRetryScheduled
from sandherd.contracts.failures import ErrorType, is_transient
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.states import TaskState
from sandherd.telemetry.traceparents import derived
from spawner.spec_resolution import Refusal
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.task_secrets import has_secrets, hidden

_NOTHING: Final[Mapping[str, str]] = {}
_ALWAYS_FINAL: Final = frozenset({ErrorType.TASK_TIMED_OUT, ErrorType.DEPENDENCY_FAILED, ErrorType.CANCELLED})
"""Errors that another attempt could never fix, independent of the task's retry policy."""


def is_retried(record: TaskRecord, error_type: str) -> bool:
    """Whether an attempt that failed with this error is retried."""
    fixable = is_transient(error_type, record.spec.retry.also) and error_type not in _ALWAYS_FINAL
    return fixable and record.attempt < record.max_attempts


def delay(retry: RetryPolicy, attempt: int, seed: str) -> float:
    """The delay after this attempt, in seconds: doubled with each attempt, then reduced by up to half (jitter).

    The jitter is derived from the seed: tasks that failed together are not retried together, and repeated calls return
    the same value.
    """
    policy = Backoff(retry.first_delay_seconds, retry.longest_delay_seconds, jitter=0.5)
    random_fraction = int.from_bytes(hashlib.sha256(f"{seed}\0{attempt}".encode()).digest()[:8], "big") / 2**64
    return policy.delay(attempt - 1, random_fraction)


def retry_scheduled(record: TaskRecord, error: str, error_type: str, now: datetime) -> TaskRecord:
    """The task with its next attempt pending, after this one failed."""
    delay_seconds = delay(record.spec.retry, record.attempt, f"{record.project}/{record.task}/{record.life}")
    failed = record.entering(TaskState.FAILED, error=error, error_type=error_type)
    return _with_next_attempt(failed, now + timedelta(seconds=delay_seconds), now)


def retry_refusal(record: TaskRecord, now: datetime, new_values: Mapping[str, str] = _NOTHING) -> Refusal | None:
    """Why a user can't retry this task, or None. `new_values` are new values of its secret variables."""
    if record.state not in {TaskState.FAILED, TaskState.CANCELLED}:
        return Refusal(
            f"{record.task} is {record.state}: only a failed or cancelled task can be retried", "task", Code.CONFLICT
        )
    unknown = sorted(new_values.keys() - record.spec.secret_env)
    if unknown:
        return Refusal(f"{record.task} has no secret variable {unknown[0]}", "spec.secret_env")
    missing = sorted(record.spec.secret_env - new_values.keys())
    if missing and not _are_stored(record, now):
        names = ", ".join(missing)
        return Refusal(f"the secrets of {record.task} are no longer stored: give {names} again", "spec.secret_env")
    damaged = _damaged_fields(record)
    if damaged:
        return Refusal(_damage_text(record, damaged), f"spec.{damaged[0]}")
    return None


def _damage_text(record: TaskRecord, fields: tuple[str, ...]) -> str:
    why = "contained a value of a secret" if record.erased else "were not stored"
    return f"{', '.join(fields)} of {record.task} {why}, and can't be used again: submit it under another name"


def _are_stored(record: TaskRecord, now: datetime) -> bool:
    return has_secrets(record.spec) and record.secrets_until is not None and now < record.secrets_until


def _damaged_fields(record: TaskRecord) -> tuple[str, ...]:
    """The fields of its spec that can't be reused."""
    if has_secrets(record.spec):
        return ()
    if record.erased is None:
        return ("files",) if record.spec.files else ()
    return record.erased


def with_values(spec: TaskSpec, new_values: Mapping[str, str]) -> TaskSpec:
    """The spec with new values of its secret variables. Raises `ValueError` for values that break the contract."""
    if not new_values:
        return spec
    return TaskSpec.model_validate({**spec.model_dump(), "env": {**spec.env, **new_values}})


def retry_requested(
    record: TaskRecord, command: Envelope[RetryTask], now: datetime, new_values: Mapping[str, str] = _NOTHING
) -> TaskRecord:
    """The task with its next attempt pending, requested by a user. Repeating the command changes nothing.

    `new_values` are new values of secret variables. Raises `ValueError` for values that break the contract.
    """
    if record.retried_by == command.id.hex or retry_refusal(record, now, new_values):
        return record
    allowed = record.model_copy(
        update={
            "retried_by": command.id.hex,
            "max_attempts": max(record.max_attempts, record.attempt + 1),
            "limited_from": now,
            "spec": with_values(record.spec, new_values),
            **_own_span(record, command.id.hex),
        }
    )
    return _with_next_attempt(allowed, now, now, requested_by=command.data.requested_by or "a person")


def _own_span(record: TaskRecord, by: str) -> dict[str, str]:
    """The trace fields of a retry by a user: a new span, whose parent is the span of the task until its last end."""
    if record.traceparent is None:
        return {}
    return {"traceparent": derived(record.traceparent, by), "parent": record.traceparent}


def _with_next_attempt(
    ended: TaskRecord, not_before: datetime, now: datetime, requested_by: str | None = None
) -> TaskRecord:
    """The task with its next attempt pending, after a failed attempt or the end of the task."""
    event = TaskRetryScheduled(
        attempt=ended.attempt,
        not_before=not_before,
        error=ended.error or f"it was {ended.state}",
        error_type=ended.error_type,
        sandbox=ended.sandbox,
        requested_by=requested_by,
    )
    return ended.with_events(now, event).entering(
        TaskState.PENDING,
        attempt=ended.attempt + 1,
        not_before=not_before,
        previous=_previous_of(ended),
        sandbox=None,
        work=None,
        transcript=None,
        session=None,
        checkout=None,
        waits_because=None,
        assigned_at=None,
        started_at=None,
        ended_at=None,
        error=None,
        error_type=None,
        result={},
        secrets_until=None,
        erased=None,
    )


def _previous_of(ended: TaskRecord) -> Previous | None:
    """What the next attempt gets from this one; if this one never had a sandbox, what this one got."""
    if ended.sandbox is None:
        return ended.previous
    return Previous(
        attempt=ended.attempt,
        sandbox=ended.sandbox,
        error=hidden(ended.error, ended.spec),
        error_type=ended.error_type,
        work=ended.work,
        transcript=ended.transcript,
        session=ended.session,
        use=ended.spec.on_retry,
    )
