"""State changes of a sandbox: pure functions that return its record after something has happened."""

from datetime import datetime, timedelta
from typing import Any, Final

from sandherd.contracts.commands import PauseSandbox
from sandherd.contracts.errors import Code
from sandherd.contracts.events.sandbox import (
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
from spawner.sandboxes.sandbox_record import SandboxRecord, WorkerKey
from spawner.tasks.task_record import TaskRecord

JOINER_MARGIN: Final = timedelta(hours=1)
"""How much later than its sandbox a joiner's credential expires."""
MAX_KEYS: Final = 16
"""Maximum keys of one sandbox that have valid credentials at the same time."""


def requested(task: TaskRecord, sandbox: str, now: datetime, *, expires_at: datetime | None = None) -> SandboxRecord:
    """The requested sandbox of the task's current attempt. It is stored before a runtime is called.

    The inputs of the task's spec have the results of its dependencies. `expires_at` is from `spec_resolution.expiry`.
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
        inputs=task.spec.inputs,
        checkout=task.checkout,
        resumes=task.spec.resume.sandbox if task.spec.resume else None,
        requested_at=now,
        expires_at=expires_at,
        joiner_until=joiner_end(expires_at),
    )
    event = SandboxRequested(
        runtime=record.runtime,
        linger_seconds=task.spec.linger_seconds,
        expires_at=expires_at,
        profile=record.profile,
        requested_by=task.submitted_by,
        budget=task.budget,
        max_intervention=task.spec.max_intervention or task.defaults.max_intervention,
        constraints=task.constraints,
    )
    return record.with_events(now, event)


def joiner_end(expires_at: datetime | None) -> datetime | None:
    """Expiry of a sandbox's first credential: after the sandbox's, so that undelivered events can be recovered."""
    return expires_at + JOINER_MARGIN if expires_at else None


def fenced(record: SandboxRecord, revision: int) -> SandboxRecord:
    """The record with its fencing token. The first change of a record must include it."""
    return record if record.fence is not None else record.model_copy(update={"fence": revision})


def with_reconciler_fence(record: SandboxRecord, revision: int, fence: int) -> SandboxRecord:
    """The record with its own fencing token, and that of the reconciler that changes it."""
    return fenced(record, revision).model_copy(update={"led_by": fence})


def spawned(record: SandboxRecord, isolation: str | None, now: datetime) -> SandboxRecord:
    """The runtime has created the sandbox. If its worker has published before, only the isolation is recorded."""
    if record.state is not SandboxState.REQUESTED:
        return record if record.isolation else record.model_copy(update={"isolation": isolation})
    spawn_ms = max(0.0, (now - record.requested_at).total_seconds() * 1000)
    new_record = record.entering(SandboxState.SPAWNING, spawned_at=now, isolation=isolation)
    return new_record.with_events(now, _spawned_event(record, spawn_ms, isolation))


def _spawned_event(record: SandboxRecord, spawn_ms: float, isolation: str | None) -> SandboxSpawned:
    return SandboxSpawned(runtime=record.runtime, spawn_ms=spawn_ms, isolation=isolation, warm=record.unit is not None)


def running(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """The worker has published its start. Unchanged if the sandbox was already running, or is ending."""
    if record.state in SANDBOX_ENDING | {SandboxState.RUNNING, SandboxState.PAUSED}:
        return record
    spawned_record = spawned(record, None, now) if record.state is SandboxState.REQUESTED else record
    new_record = spawned_record.entering(SandboxState.RUNNING, running_at=now)
    return new_record.with_events(now, SandboxRunning(runtime=record.runtime))


def paused(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """The runtime has frozen the sandbox. Unchanged if it is no longer running."""
    if record.state is not SandboxState.RUNNING:
        return record
    new_record = record.entering(SandboxState.PAUSED)
    return new_record.with_events(now, SandboxPaused(runtime=record.runtime, reason=record.pause_reason))


def resumed(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """The runtime has unfrozen the sandbox. If the pause was never recorded, no event is published."""
    if record.state is not SandboxState.PAUSED:
        return record.model_copy(update={"may_be_frozen": False}) if record.may_be_frozen else record
    new_record = record.entering(SandboxState.RUNNING, may_be_frozen=False)
    return new_record.with_events(now, SandboxResumed(runtime=record.runtime))


def unfreezable(record: SandboxRecord, why: str, now: datetime) -> SandboxRecord:
    """The runtime refuses to freeze the sandbox; the pause request is withdrawn."""
    if not record.pause_wanted:
        return record
    event = SandboxRefused(command=PauseSandbox.type, reason=why, field="sandbox", code=Code.REFUSED)
    return record.model_copy(update={"pause_wanted": False, "pause_reason": "", "may_be_frozen": False}).with_events(
        now, event
    )


def stopping(
    record: SandboxRecord, reason: str, now: datetime, *, error: str | None = None, error_type: str | None = None
) -> SandboxRecord:
    """The sandbox must end. Unchanged if it is already ending."""
    if record.state in SANDBOX_ENDING:
        return record
    new_record = record.entering(
        SandboxState.STOPPING, stopping_at=now, reason=reason, error=error, error_type=error_type
    )
    return new_record.with_events(now, SandboxStopping(runtime=record.runtime, reason=reason))


def stopped(record: SandboxRecord, exit_code: int | None) -> SandboxRecord:
    """The first worker and all processes have ended; undelivered events may still be on the host."""
    return record if record.stopped else record.model_copy(update={"stopped": True, "exit_code": exit_code})


def recovering(record: SandboxRecord, now: datetime) -> SandboxRecord:
    """A recovery worker will be started, to publish its predecessor's undelivered events."""
    return record.model_copy(update={"recoveries": record.recoveries + 1, "recovered_at": now})


def terminated(record: SandboxRecord, *, unsaid: bool, now: datetime) -> SandboxRecord:
    """The sandbox and all its processes have ended. `unsaid` is whether events are undelivered.

    Called again for an ended sandbox after a recovery, when its events may be delivered.
    """
    if record.ended:
        changed = record.model_copy(update={"unsaid": unsaid, **_credentials_revoked(record)})
        return changed if unsaid else changed.forgetting()
    reason = record.reason or "ended"
    new_record = record.entering(SandboxState.TERMINATED, ended_at=now, unsaid=unsaid, **_credentials_revoked(record))
    lived = max(0.0, (now - record.requested_at).total_seconds())
    event = SandboxTerminated(
        runtime=record.runtime, reason=reason, lived_seconds=lived, exit_code=record.exit_code, unsaid=unsaid
    )
    done = new_record.with_events(now, event)
    # A recovery needs the secrets, to redact its predecessor's undelivered events.
    return done if unsaid else done.forgetting()


def one_more_recovery(record: SandboxRecord) -> SandboxRecord:
    """Allow another recovery of undelivered events, by not counting the last one."""
    if not record.unsaid or record.recovered_at is None:
        return record
    return record.model_copy(update={"recoveries": record.recoveries - 1, "recovered_at": None})


def is_needlessly_quarantined(record: SandboxRecord) -> bool:
    """Whether there is no reason to quarantine the sandbox: only ended ones with undelivered events are quarantined.

    If its runtime reports it as quarantined nevertheless, its agent may have forged that to stay alive.
    """
    return record.ended and not record.unsaid


def failed(record: SandboxRecord, error: str, error_type: str, now: datetime) -> SandboxRecord:
    """The sandbox could not be created, or is lost."""
    new_record = record.entering(
        SandboxState.FAILED,
        ended_at=now,
        error=error,
        error_type=error_type,
        reason=error_type,
        **_credentials_revoked(record),
    )
    return new_record.with_events(
        now, SandboxFailed(runtime=record.runtime, error=error, error_type=error_type)
    ).forgetting()


def _credentials_revoked(record: SandboxRecord) -> dict[str, Any]:
    """The fields that change when every credential of a sandbox has been revoked."""
    return {"keys": (), "joiner_serial": record.joiner_serial + 1}


def granted(record: SandboxRecord, key: WorkerKey, now: datetime) -> SandboxRecord:
    """Record a credential for this key, before it is issued, so that it can be revoked.

    An earlier credential for the same key may expire later, if the lifetime of credentials was changed.
    """
    valid = tuple(old for old in record.keys if old.expires_at > now and old.public_key != key.public_key)
    latest = max((old.expires_at for old in record.keys if old.public_key == key.public_key), default=key.expires_at)
    recorded_key = key.model_copy(update={"expires_at": max(latest, key.expires_at)})
    return record.model_copy(update={"keys": (*valid, recorded_key)})


def has_keys_enough(record: SandboxRecord, public_key: str, now: datetime) -> bool:
    """Whether a credential for this key would exceed `MAX_KEYS`. A worker has one key; after a loss it has another.

    Every key must be revoked when the sandbox ends. The list of revoked keys is shared by the whole herd and limited.
    """
    valid_keys = {key.public_key for key in record.keys if key.expires_at > now}
    return len(valid_keys - {public_key}) >= MAX_KEYS
