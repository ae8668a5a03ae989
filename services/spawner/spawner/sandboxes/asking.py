"""What people ask of a sandbox, as pure functions: the record that does it, or why it can't be had."""

from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.commands import CreateSandbox
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.lifecycle import SandboxExtended, SandboxRequested
from sandherd.contracts.names import JOINER_SUFFIX, SANDBOX_PREFIX, UnsafeNameError, safe_sandbox
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from sandherd.telemetry.traceparents import begun_with
from spawner.resolving import Menu, Refusal, Resolved, expiry
from spawner.sandboxes.decisions import joiner_end
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.secrets import forgotten_alone

_FROZEN_OR_NEARLY: Final = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})


def name_refusal(sandbox: str) -> Refusal | None:
    """Why no sandbox may be called so, or None."""
    try:
        safe_sandbox(sandbox)
    except UnsafeNameError:
        rule = f"begins with {SANDBOX_PREFIX!r} and does not end with {JOINER_SUFFIX!r}"
        return Refusal(f"a sandbox's name {rule}; this is {sandbox!r}", "sandbox")
    return None


def requested_alone(
    command: Envelope[CreateSandbox], resolved: Resolved, menu: Menu, now: datetime, trace: str
) -> SandboxRecord:
    """The intent to make a sandbox without a task."""
    asked = command.data
    ends = expiry(asked.spec, menu, now)
    traceparent, parent = begun_with(command.traceparent or trace, asked.sandbox)
    record = SandboxRecord(
        project=command.project,
        traceparent=traceparent,
        parent=parent,
        sandbox=asked.sandbox,
        runtime=resolved.runtime,
        limits=resolved.limits,
        spec=asked.spec.model_copy(update={"env": dict(resolved.env)}),
        profile=asked.spec.profile,
        requested_by=asked.requested_by,
        requested_at=now,
        expires_at=ends,
        joiner_until=joiner_end(ends),
    )
    return record.saying(
        now,
        SandboxRequested(
            runtime=record.runtime,
            expires_at=record.expires_at,
            profile=record.profile,
            requested_by=record.requested_by,
        ),
    )


def same_sandbox(record: SandboxRecord, command: Envelope[CreateSandbox], resolved: Resolved) -> bool:
    """Whether the command asks for what the record already is."""
    asked = command.data.spec.model_copy(update={"env": dict(resolved.env)})
    if record.ended and asked.secret_env:  # its secrets are forgotten: the rest has to be the same
        asked = forgotten_alone(asked)
    return record.spec == asked and record.requested_by == command.data.requested_by


def taken(sandbox: str) -> Refusal:
    """This name can't be given: no two sandboxes have the same, in whatever projects they are."""
    return Refusal(f"there is another sandbox {sandbox}: choose a new name", "sandbox")


def paused_by(record: SandboxRecord, reason: str, *, can_pause: bool) -> SandboxRecord | Refusal:
    """It is to be frozen. Asked twice, it is frozen once."""
    if not can_pause:
        return Refusal(f"runtime {record.runtime} can't freeze a sandbox here", "sandbox")
    if record.state not in _FROZEN_OR_NEARLY:
        return Refusal(f"{record.sandbox} is {record.state}: only a running sandbox can be paused", "sandbox")
    if record.pause_wanted:
        return record
    return record.model_copy(update={"pause_wanted": True, "pause_reason": reason, "may_be_frozen": True})


def resumed_by(record: SandboxRecord) -> SandboxRecord | Refusal:
    """It is to go on; one that does already goes on."""
    if record.state not in _FROZEN_OR_NEARLY:
        return Refusal(f"{record.sandbox} is {record.state}: only a paused sandbox can be resumed", "sandbox")
    return record.model_copy(update={"pause_wanted": False, "pause_reason": ""}) if record.pause_wanted else record


def extended_by(record: SandboxRecord, seconds: int, now: datetime, max_ttl: float) -> SandboxRecord | Refusal:
    """It may live so much longer, from now. One that may live longer anyway is not cut short."""
    if record.state in SANDBOX_ENDING:
        return Refusal(f"{record.sandbox} is {record.state}: its time can't be extended any more", "sandbox")
    end, last = now + timedelta(seconds=seconds), record.requested_at + timedelta(seconds=max_ttl)
    if end > last:
        left = max(0, int((last - now).total_seconds()))
        return Refusal(
            f"{seconds} s more is too long: a sandbox may live {max_ttl:g} s in all, so at most {left} s are left",
            "seconds",
        )
    if record.expires_at is not None and record.expires_at >= end:
        return record
    longer = record.model_copy(update={"expires_at": end})
    return longer.saying(now, SandboxExtended(runtime=record.runtime, expires_at=end))
