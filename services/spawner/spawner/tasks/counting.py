"""Counts what becomes of attempts, at the write that decides it."""

from sandherd.contracts.failures import ErrorType
from sandherd.telemetry.metrics import Meters
from spawner.tasks.record import TaskRecord

_KNOWN = frozenset(ErrorType)


def count(meters: Meters, before: TaskRecord, after: TaskRecord) -> None:
    """An attempt has ended, if this write says so."""
    if after.attempt > before.attempt and not before.ended:
        error_type = after.previous.error_type if after.previous else None
        meters.count("sandherd_retries_total", error_type=error_type if error_type in _KNOWN else "other")
        meters.count("sandherd_attempts_total", outcome="retried")
    elif after.ended and not before.ended:
        meters.count("sandherd_attempts_total", outcome=after.state)
