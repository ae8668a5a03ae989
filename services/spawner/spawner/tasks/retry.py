"""Trying a task again: after a failure that may pass, by itself and later each time; or because somebody asks."""

import hashlib
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.commands import Retry, RetryTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.lifecycle import TaskRetryScheduled
from sandherd.contracts.failures import ErrorType, is_transient
from sandherd.contracts.offers import Previous
from sandherd.contracts.states import TaskState
from spawner.resolving import Refusal
from spawner.tasks.record import TaskRecord
from spawner.tasks.secrets import hidden

_LARGEST_POWER: Final = 40
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


def retry_refusal(record: TaskRecord) -> Refusal | None:
    """Why a person can't have this task tried again, or None."""
    if record.state not in {TaskState.FAILED, TaskState.CANCELLED}:
        return Refusal(f"{record.task} is {record.state}: only a failed or cancelled task is tried again", "task")
    if record.spec.secret_env or record.spec.files:
        return Refusal(
            f"the secrets and files of {record.task} were forgotten when it ended: submit it anew, under another name",
            "task",
        )
    return None


def asked_again(record: TaskRecord, command: Envelope[RetryTask], now: datetime) -> TaskRecord:
    """The next attempt waits, because somebody asked for it. The same command again changes nothing."""
    if record.retried_by == command.id.hex or retry_refusal(record):
        return record
    allowed = record.model_copy(
        update={
            "retried_by": command.id.hex,
            "max_attempts": max(record.max_attempts, record.attempt + 1),
            "limited_from": now,
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
