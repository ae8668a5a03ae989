"""What becomes of a sandbox, as pure functions: a record and a fact in, the next record out."""

from datetime import datetime, timedelta
from typing import Any, Final

from sandherd.contracts.commands import PauseSandbox
from sandherd.contracts.events.lifecycle import (
    SandboxFailed,
    SandboxPaused,
    SandboxRefused,
    SandboxRequested,
    SandboxResumed,
    SandboxRunning,
    SandboxSpawned,
    SandboxStopping,
    SandboxTerminated,
)
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from sandherd.telemetry import traceparents
from spawner.sandboxes.record import SandboxRecord, WorkerKey
from spawner.tasks.record import TaskRecord

JOINER_MARGIN: Final = timedelta(hours=1)
"""How much longer than a sandbox its joiner's credential lives."""
MOST_KEYS: Final = 16
"""For how many keys of one sandbox there are credentials at the same time."""


def requested(
    task: TaskRecord, sandbox: str, now: datetime, *, expires_at: datetime | None = None, unit: str | None = None
) -> SandboxRecord:
    """The intent to make a sandbox for the task's current attempt; nothing is asked of a runtime before it is kept.

    `expires_at` as `resolving.expiry` has it; `unit` is the one of the pool that it was given, if it was.
    """
    record = SandboxRecord(
        project=task.project,
        traceparent=traceparents.of_sandbox(task.traceparent, sandbox) if task.traceparent else None,
        parent=task.traceparent,
        sandbox=sandbox,
        task=task.task,
        attempt=task.attempt,
        runtime=task.runtime,
        limits=task.limits,
        profile=task.spec.profile,
        previous=task.previous,
        resumes=task.spec.resume.sandbox if task.spec.resume else None,
        requested_at=now,
        expires_at=expires_at,
        joiner_until=joiner_end(expires_at),
        unit=unit,
    )
    said = SandboxRequested(
        runtime=record.runtime,
        linger_seconds=task.spec.linger_seconds,
        expires_at=expires_at,
        profile=record.profile,
        requested_by=task.submitted_by,
    )
    return record.saying(now, said)


def joiner_end(expires_at: datetime | None) -> datetime | None:
    """How long a sandbox's first credential is to be good: a while longer than it, to recover what it has left."""
    return expires_at + JOINER_MARGIN if expires_at else None


def fenced(record: SandboxRecord, revision: int) -> SandboxRecord:
    """The record with its fencing token in it; to be part of its first change."""
    return record if record.fence is not None else record.model_copy(update={"fence": revision})


def led(record: SandboxRecord, revision: int, lead: int) -> SandboxRecord:
    """The same, with the token of the keeper that changes it."""
    return fenced(record, revision).model_copy(update={"led_by": lead})


def spawned(record: SandboxRecord, isolation: str | None, now: datetime) -> SandboxRecord:
    """The runtime has made it. A fast worker may have spoken first: then only the isolation is new."""
    if record.state is not SandboxState.REQUESTED:
        return record if record.isolation else record.model_copy(update={"isolation": isolation})
    took = max(0.0, (now - record.requested_at).total_seconds() * 1000)
    moved = record.entering(SandboxState.SPAWNING, spawned_at=now, isolation=isolation)
    return moved.saying(now, _said_spawned(record, took, isolation))


def _said_spawned(record: SandboxRecord, took: float, isolation: str | None) -> SandboxSpawned:
    return SandboxSpawned(runtime=record.runtime, spawn_ms=took, isolation=isolation, warm=record.unit is not None)


def running(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """Its worker has spoken. Nothing changes if that was known, or if it is on its way out."""
    if record.state in SANDBOX_ENDING | {SandboxState.RUNNING, SandboxState.PAUSED}:
        return record
    made = spawned(record, None, now) if record.state is SandboxState.REQUESTED else record
    moved = made.entering(SandboxState.RUNNING, running_at=now)
    return moved.saying(now, SandboxRunning(runtime=record.runtime))


def paused(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """Its runtime has frozen it. One that is not running any more was frozen too late."""
    if record.state is not SandboxState.RUNNING:
        return record
    moved = record.entering(SandboxState.PAUSED)
    return moved.saying(now, SandboxPaused(runtime=record.runtime, reason=record.pause_reason))


def resumed(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """Its runtime lets it go on. That it was frozen may never have been written down: then nothing is said."""
    if record.state is not SandboxState.PAUSED:
        return record.model_copy(update={"may_be_frozen": False}) if record.may_be_frozen else record
    moved = record.entering(SandboxState.RUNNING, may_be_frozen=False)
    return moved.saying(now, SandboxResumed(runtime=record.runtime))


def unfreezable(record: SandboxRecord, why: str, now: datetime) -> SandboxRecord:
    """Its runtime will not freeze it; nobody wants that any more."""
    if not record.pause_wanted:
        return record
    said = SandboxRefused(command=PauseSandbox.type, reason=why, field="sandbox")
    return record.model_copy(update={"pause_wanted": False, "pause_reason": "", "may_be_frozen": False}).saying(
        now, said
    )


def stopping(
    record: SandboxRecord, reason: str, now: datetime, *, error: str | None = None, error_type: str | None = None
) -> SandboxRecord:
    """It is to be ended. Nothing changes if it is ending already."""
    if record.state in SANDBOX_ENDING:
        return record
    moved = record.entering(SandboxState.STOPPING, stopping_at=now, reason=reason, error=error, error_type=error_type)
    return moved.saying(now, SandboxStopping(runtime=record.runtime, reason=reason))


def stopped(record: SandboxRecord, exit_code: int | None) -> SandboxRecord:
    """Its first worker has ended, and every process with it; what it could not say may still lie there."""
    return record if record.stopped else record.model_copy(update={"stopped": True, "exit_code": exit_code})


def recovering(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """A worker will be started once more, to say what its predecessor could not."""
    return record.model_copy(update={"recoveries": record.recoveries + 1, "recovered_at": now})


def terminated(record: SandboxRecord, *, unsaid: bool, now: datetime) -> SandboxRecord:
    """It is gone, with all its processes. If that was known, what it could not say then may be said now."""
    if record.ended:
        changed = record.model_copy(update={"unsaid": unsaid, **_nothing_good(record)})
        return changed if unsaid else changed.forgetting()
    reason = record.reason or "ended"
    moved = record.entering(SandboxState.TERMINATED, ended_at=now, unsaid=unsaid, **_nothing_good(record))
    lived = max(0.0, (now - record.requested_at).total_seconds())
    said = SandboxTerminated(
        runtime=record.runtime, reason=reason, lived_seconds=lived, exit_code=record.exit_code, unsaid=unsaid
    )
    done = moved.saying(now, said)
    # A recovery needs them once more, to redact what its predecessor could not say.
    return done if unsaid else done.forgetting()


def tried_again(record: SandboxRecord) -> SandboxRecord:
    """What it could not say is tried once more: one recovery, as if the last of those before had not been."""
    if not record.unsaid or record.recovered_at is None:
        return record
    return record.model_copy(update={"recoveries": record.recoveries - 1, "recovered_at": None})


def lies_in_vain(record: SandboxRecord) -> bool:
    """Whether what it left has no reason to lie aside: only what has ended with something unsaid is put there by us.

    Where its runtime shows it as put aside all the same, that may be the word of its agent, which wants to live on.
    """
    return record.ended and not record.unsaid


def failed(record: SandboxRecord, error: str, error_type: str, now: datetime) -> SandboxRecord:
    """It could not be made, or is lost."""
    moved = record.entering(
        SandboxState.FAILED,
        ended_at=now,
        error=error,
        error_type=error_type,
        reason=error_type,
        **_nothing_good(record),
    )
    return moved.saying(now, SandboxFailed(runtime=record.runtime, error=error, error_type=error_type)).forgetting()


def _nothing_good(record: SandboxRecord) -> dict[str, Any]:
    """What changes when every credential of a sandbox has been revoked."""
    return {"keys": (), "joiner_serial": record.joiner_serial + 1}


def granted(record: SandboxRecord, key: WorkerKey, now: datetime) -> SandboxRecord:
    """A credential was made for this key; it is known from before it is handed out, so that it can be taken back."""
    kept = tuple(old for old in record.keys if old.expires_at > now and old.public_key != key.public_key)
    return record.model_copy(update={"keys": (*kept, key)})


def has_keys_enough(record: SandboxRecord, public_key: str, now: datetime) -> bool:
    """Whether a credential for this key would be one too many. A worker has one key, and a new one if it was lost.

    Each has to be taken back when the sandbox ends, in a list that has one size for the whole herd.
    """
    living = {key.public_key for key in record.keys if key.expires_at > now}
    return len(living - {public_key}) >= MOST_KEYS


def purgeable(ended_at: datetime | None, now: datetime, keep: float) -> bool:
    """Whether an ended record has been kept long enough."""
    return ended_at is not None and ended_at + timedelta(seconds=keep) < now
