"""Counts and tells what becomes of attempts, at the write that decides it."""

from collections.abc import Callable
from datetime import datetime

from sandherd.telemetry.meters import Meters
from spawner.tasks.record import TaskRecord
from spawner.tracing import tell_attempt, tell_task


def count(meters: Meters, clock: Callable[[], datetime], before: TaskRecord, after: TaskRecord) -> None:
    """An attempt has ended, if this write says so."""
    if after.attempt > before.attempt and not before.ended:
        error_type = after.previous.error_type if after.previous else None
        meters.count("sandherd_retries_total", error_type=str(error_type))
        meters.count("sandherd_attempts_total", outcome="retried")
        tell_attempt(before, "retried", error_type, after, clock())
    elif after.ended and not before.ended:
        meters.count("sandherd_attempts_total", outcome=after.state)
        took = ((after.ended_at or after.submitted_at) - after.submitted_at).total_seconds()
        meters.observe("sandherd_task_seconds", max(0.0, took), state=after.state)
        tell_attempt(before, after.state, after.error_type if after.error else None, after, clock())
        tell_task(after)
