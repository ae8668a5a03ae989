"""Metrics and spans of attempts and tasks, recorded at the write that ends them."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from sandherd.contracts.failures import ErrorType
from sandherd.telemetry import spans, traceparents
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.spans import Attribute, Value, Values
from sandherd.telemetry.traces import is_exported, record
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord

_USED: Final = {
    "session_id": spans.CONVERSATION,
    "input_tokens": spans.INPUT_TOKENS,
    "output_tokens": spans.OUTPUT_TOKENS,
    "cache_read_tokens": spans.CACHE_READ,
    "cache_write_tokens": spans.CACHE_WRITTEN,
}
_KNOWN: Final = frozenset(ErrorType)


def record_attempt_span(
    before: TaskRecord, outcome: str, error_type: str | None, after: TaskRecord, now: datetime
) -> None:
    """Record the agent's span of an attempt that has ended. An attempt without a sandbox has none."""
    if not is_exported() or before.traceparent is None or before.sandbox is None:
        return
    sandbox = traceparents.of_sandbox(before.traceparent, before.sandbox)
    values: dict[Attribute, Value | None] = {
        **_task_values(before),
        spans.SANDBOX_ID: before.sandbox,
        spans.ATTEMPT: before.attempt,
        spans.OUTCOME: outcome,
        spans.ERROR_TYPE: _kind(error_type),
        spans.OPERATION: "invoke_agent",
        spans.AGENT_NAME: before.harness_kind,
        spans.AGENT_ID: before.sandbox,
        **{attribute: after.result.get(name) for name, attribute in _USED.items()},
    }
    begun = before.started_at or before.assigned_at or before.submitted_at
    record(spans.AGENT, sandbox, begun, now, values, own=traceparents.of_agent(sandbox))


def record_task_span(task: TaskRecord) -> None:
    """Record the span of a task that has ended. Each retry by a user has another span, from the retry on."""
    if not is_exported() or task.traceparent is None:
        return
    values: Values = {
        **_task_values(task),
        spans.SANDBOX_ID: task.sandbox,
        spans.AGENT_NAME: task.harness_kind,
        spans.PRIORITY: task.spec.priority,
        spans.ATTEMPT: task.attempt,
        spans.STATE: task.state,
        spans.ERROR_TYPE: _kind(task.error_type if task.error else None),
    }
    begun = task.limited_from or task.submitted_at
    record(spans.TASK, task.parent, begun, task.ended_at or begun, values, own=task.traceparent)


def record_sandbox_span(before: SandboxRecord, after: SandboxRecord) -> None:
    """Record a sandbox's span if this write ends the sandbox. Sandboxes of earlier versions have no span."""
    if not after.ended or before.ended or not is_exported() or after.traceparent is None:
        return
    if after.task is not None and after.parent is None:
        return
    values: Values = {
        spans.PROJECT: after.project,
        spans.TASK_ID: after.task,
        spans.SANDBOX_ID: after.sandbox,
        spans.RUNTIME: after.runtime,
        spans.STATE: after.state,
        spans.ERROR_TYPE: _kind(after.error_type),
    }
    ended = after.ended_at or after.requested_at
    record(spans.SANDBOX, after.parent, after.requested_at, ended, values, own=after.traceparent)


def _task_values(task: TaskRecord) -> dict[Attribute, Value | None]:
    return {spans.PROJECT: task.project, spans.TASK_ID: task.task}


def _kind(error_type: str | None) -> str | None:
    """The error type as the semantic conventions require it: one of a small set of values, else `_OTHER`."""
    return error_type if error_type is None or error_type in _KNOWN else "_OTHER"


def count(meters: Meters, clock: Callable[[], datetime], before: TaskRecord, after: TaskRecord) -> None:
    """Record the end of an attempt, if this write ends it."""
    if after.attempt > before.attempt and not before.ended:
        error_type = after.previous.error_type if after.previous else None
        meters.count("sandherd_retries_total", error_type=str(error_type))
        meters.count("sandherd_attempts_total", outcome="retried")
        record_attempt_span(before, "retried", error_type, after, clock())
    elif after.ended and not before.ended:
        meters.count("sandherd_attempts_total", outcome=after.state)
        took = ((after.ended_at or after.submitted_at) - after.submitted_at).total_seconds()
        meters.observe("sandherd_task_seconds", max(0.0, took), state=after.state)
        record_attempt_span(before, after.state, after.error_type if after.error else None, after, clock())
        record_task_span(after)
