"""Users' commands about a sandbox, as pure functions that return the changed record or a refusal."""

from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.commands import CreateSandbox, TerminateSandbox
from sandherd.contracts.durations import duration_text, rounded_down
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events.sandbox import SandboxExtended, SandboxRequested
from sandherd.contracts.names import JOINER_SUFFIX, SANDBOX_PREFIX, UnsafeNameError, safe_sandbox
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from sandherd.telemetry.traceparents import request_span
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.sandboxes.sandbox_transitions import joiner_end, stopping
from spawner.spec_resolution import Refusal, ResolvedSpec, SpawnPolicy, expiry
from spawner.tasks.task_secrets import sandbox_without_secrets

_FROZEN_OR_NEARLY: Final = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})


def name_refusal(sandbox: str) -> Refusal | None:
    """Why this sandbox name is invalid, or None."""
    try:
        safe_sandbox(sandbox)
    except UnsafeNameError:
        rule = f"begins with {SANDBOX_PREFIX!r} and does not end with {JOINER_SUFFIX!r}"
        return Refusal(f"a sandbox's name {rule}; got {sandbox!r}", "sandbox")
    return None


def requested_alone(
    command: Envelope[CreateSandbox], resolved: ResolvedSpec, menu: SpawnPolicy, now: datetime, trace: str
) -> SandboxRecord:
    """The record of a requested sandbox without a task."""
    request = command.data
    ends = expiry(request.spec, menu, now)
    traceparent, parent = request_span(command.traceparent or trace, request.sandbox)
    record = SandboxRecord(
        project=command.project,
        traceparent=traceparent,
        parent=parent,
        sandbox=request.sandbox,
        runtime=resolved.runtime,
        limits=resolved.limits,
        spec=request.spec.model_copy(update={"env": dict(resolved.env)}),
        profile=request.spec.profile,
        requested_by=request.requested_by,
        requested_at=now,
        expires_at=ends,
        joiner_until=joiner_end(ends),
    )
    return record.with_events(
        now,
        SandboxRequested(
            runtime=record.runtime,
            expires_at=record.expires_at,
            profile=record.profile,
            requested_by=record.requested_by,
        ),
    )


def same_sandbox(record: SandboxRecord, command: Envelope[CreateSandbox], resolved: ResolvedSpec) -> bool:
    """Whether the command requests the same sandbox as the record."""
    spec = command.data.spec.model_copy(update={"env": dict(resolved.env)})
    if record.ended and spec.secret_env:  # its secrets are erased: the rest must be the same
        spec = sandbox_without_secrets(spec)
    return record.spec == spec and record.requested_by == command.data.requested_by


def name_in_use(sandbox: str) -> Refusal:
    """The refusal of a name in use: sandbox names are unique across all projects."""
    return Refusal(f"another sandbox {sandbox} already exists: choose a new name", "sandbox", Code.CONFLICT)


def _wrong_state(record: SandboxRecord, why: str) -> Refusal:
    return Refusal(f"{record.sandbox} is {record.state}: {why}", "sandbox", Code.CONFLICT)


def terminated_by(record: SandboxRecord, command: Envelope[TerminateSandbox], now: datetime) -> SandboxRecord | Refusal:
    """Request a sandbox's end. Unchanged if it is ending already, or if this command has ended it and is repeated."""
    if record.ended and record.terminated_by != command.id.hex:
        return _wrong_state(record, "it has ended")
    changed = stopping(record, command.data.reason or "terminated", now)
    return record if changed is record else changed.model_copy(update={"terminated_by": command.id.hex})


def paused_by(record: SandboxRecord, reason: str, *, can_pause: bool) -> SandboxRecord | Refusal:
    """Request a pause. Idempotent."""
    if not can_pause:
        return Refusal(f"runtime {record.runtime} can't pause a sandbox here", "sandbox", Code.REFUSED)
    if record.state not in _FROZEN_OR_NEARLY:
        return _wrong_state(record, "only a running sandbox can be paused")
    if record.pause_wanted:
        return record
    return record.model_copy(update={"pause_wanted": True, "pause_reason": reason, "may_be_frozen": True})


def resumed_by(record: SandboxRecord) -> SandboxRecord | Refusal:
    """Request a resume. A sandbox that is not paused is unchanged."""
    if record.state not in _FROZEN_OR_NEARLY:
        return _wrong_state(record, "only a paused sandbox can be resumed")
    return record.model_copy(update={"pause_wanted": False, "pause_reason": ""}) if record.pause_wanted else record


def extended_by(record: SandboxRecord, seconds: int, now: datetime, max_ttl: float) -> SandboxRecord | Refusal:
    """Extend a sandbox's lifetime to this many seconds from now. A later expiry is not changed."""
    if record.state in SANDBOX_ENDING:
        return _wrong_state(record, "it can no longer be extended")
    end, last = now + timedelta(seconds=seconds), record.requested_at + timedelta(seconds=max_ttl)
    if end > last:
        left = max(0.0, (last - now).total_seconds())
        return Refusal(
            f"{duration_text(seconds)} is too long: a sandbox may live {duration_text(max_ttl)} in total, "
            f"so at most {rounded_down(left)} can be set now",
            "seconds",
        )
    if record.expires_at is not None and record.expires_at >= end:
        return record
    longer = record.model_copy(update={"expires_at": end})
    return longer.with_events(now, SandboxExtended(runtime=record.runtime, expires_at=end))
