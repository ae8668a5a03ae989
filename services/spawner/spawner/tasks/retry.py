"""Trying a task again: after a failure that may pass, by itself and later each time; or because somebody asks."""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.commands import Retry, RetryTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.lifecycle import TaskRetryScheduled
from sandherd.contracts.failures import ErrorType, is_transient
from sandherd.contracts.offers import Previous
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.states import TaskState
from spawner.resolving import Refusal
from spawner.tasks.record import TaskRecord
from spawner.tasks.secrets import has_secrets, hidden

_LARGEST_POWER: Final = 40
_NOTHING: Final[Mapping[str, str]] = {}
_ALWAYS_FINAL: Final = frozenset({ErrorType.TASK_TIMED_OUT, ErrorType.DEPENDENCY_FAILED, ErrorType.CANCELLED})
"""What another attempt could never mend, whatever the task wishes."""


def may_again(record: TaskRecord, error_type: str) -> bool:
    """Whether an attempt that failed so is followed by another."""
    mends = is_transient(error_type, record.spec.retry.also) and error_type not in _ALWAYS_FINAL
    return mends and record.attempt < record.max_attempts


def delay(retry: Retry, attempt: int, seed: str) -> float:
    """How long to rest after this attempt, in seconds: doubled with each, and less by up to a half.

    How much less is drawn from the seed, so that tasks that failed together do not come back together, and so that
    the same is found however often it is asked.
    """
    longest = min(retry.longest_delay_seconds, retry.first_delay_seconds * 2.0 ** min(attempt - 1, _LARGEST_POWER))
    draw = int.from_bytes(hashlib.sha256(f"{seed}\0{attempt}".encode()).digest()[:8], "big") / 2**64
    return longest * (0.5 + draw / 2)


def tried_again(record: TaskRecord, error: str, error_type: str, now: datetime) -> TaskRecord:
    """The next attempt waits, after this one has failed."""
    rest = delay(record.spec.retry, record.attempt, f"{record.project}/{record.task}/{record.life}")
    failed = record.entering(TaskState.FAILED, error=error, error_type=error_type)
    return _anew(failed, now + timedelta(seconds=rest), now)


def retry_refusal(record: TaskRecord, now: datetime, given: Mapping[str, str] = _NOTHING) -> Refusal | None:
    """Why a person can't have this task tried again, or None. `given` are new values of its secret variables."""
    if record.state not in {TaskState.FAILED, TaskState.CANCELLED}:
        return Refusal(f"{record.task} is {record.state}: only a failed or cancelled task is tried again", "task")
    unknown = sorted(given.keys() - record.spec.secret_env)
    if unknown:
        return Refusal(f"{record.task} has no secret variable {unknown[0]}", "spec.secret_env")
    lacking = sorted(record.spec.secret_env - given.keys())
    if lacking and not _are_stored(record, now):
        names = ", ".join(lacking)
        return Refusal(f"the secrets of {record.task} are not stored any more: give {names} again", "spec.secret_env")
    damaged = _damaged(record)
    if damaged:
        return Refusal(_damage(record, damaged), f"spec.{damaged[0]}")
    return None


def _damage(record: TaskRecord, fields: tuple[str, ...]) -> str:
    why = "contained a value of a secret" if record.erased else "were not stored"
    return f"{', '.join(fields)} of {record.task} {why}, and can't be used again: submit it under another name"


def _are_stored(record: TaskRecord, now: datetime) -> bool:
    return has_secrets(record.spec) and record.secrets_until is not None and now < record.secrets_until


def _damaged(record: TaskRecord) -> tuple[str, ...]:
    """The fields of its spec that can't be used again."""
    if has_secrets(record.spec):
        return ()
    if record.erased is None:
        return ("files",) if record.spec.files else ()
    return record.erased


def with_values(spec: TaskSpec, given: Mapping[str, str]) -> TaskSpec:
    """The spec with new values of its secret variables. Raises `ValueError` for values that break the contract."""
    if not given:
        return spec
    return TaskSpec.model_validate({**spec.model_dump(), "env": {**spec.env, **given}})


def asked_again(
    record: TaskRecord, command: Envelope[RetryTask], now: datetime, given: Mapping[str, str] = _NOTHING
) -> TaskRecord:
    """The next attempt waits, because somebody asked for it. The same command again changes nothing.

    `given` are new values of secret variables. Raises `ValueError` for values that break the contract.
    """
    if record.retried_by == command.id.hex or retry_refusal(record, now, given):
        return record
    allowed = record.model_copy(
        update={
            "retried_by": command.id.hex,
            "max_attempts": max(record.max_attempts, record.attempt + 1),
            "limited_from": now,
            "spec": with_values(record.spec, given),
        }
    )
    return _anew(allowed, now, now, requested_by=command.data.requested_by or "a person")


def _anew(ended: TaskRecord, not_before: datetime, now: datetime, requested_by: str | None = None) -> TaskRecord:
    """From an attempt that has failed, or a task that has ended, to the next attempt."""
    said = TaskRetryScheduled(
        attempt=ended.attempt,
        not_before=not_before,
        error=ended.error or f"it was {ended.state}",
        error_type=ended.error_type,
        sandbox=ended.sandbox,
        requested_by=requested_by,
    )
    return ended.saying(now, said).entering(
        TaskState.PENDING,
        attempt=ended.attempt + 1,
        not_before=not_before,
        previous=_left_by(ended),
        sandbox=None,
        work=None,
        transcript=None,
        session=None,
        assigned_at=None,
        started_at=None,
        ended_at=None,
        error=None,
        error_type=None,
        result={},
        secrets_until=None,
        erased=None,
    )


def _left_by(ended: TaskRecord) -> Previous | None:
    """What the next attempt is told and given. One that never had a sandbox leaves nothing: then it is the last's."""
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
