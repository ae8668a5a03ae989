"""Time limits of a task and of its attempts: when they expire, and the resulting error and event. Pure."""

from dataclasses import dataclass
from datetime import datetime

from sandherd.contracts.events.task import TaskTimedOut
from sandherd.contracts.failures import ErrorType
from spawner.tasks.task_record import TaskRecord


@dataclass(frozen=True)
class TimeLimit:
    """A time limit of a task: its length in seconds, and when it expires."""

    seconds: float
    over_at: datetime
    whole_task: bool

    @property
    def error_type(self) -> ErrorType:
        """The error type of the task or its attempt."""
        return ErrorType.TASK_TIMED_OUT if self.whole_task else ErrorType.ATTEMPT_TIMED_OUT

    @property
    def error(self) -> str:
        """The error message."""
        return f"{'the task' if self.whole_task else 'the attempt'} took longer than {self.seconds:g} s"


def limit_of(record: TaskRecord) -> TimeLimit | None:
    """The limit that expires first. An ended task has none."""
    found = record.time_limits()
    return TimeLimit(seconds=found[0][1], over_at=found[0][0], whole_task=found[0][2]) if found else None


def timeout_events(record: TaskRecord, error_type: str) -> list[TaskTimedOut]:
    """The event that names the expired limit, if this is the error of a timeout; else no event."""
    if error_type not in {ErrorType.TASK_TIMED_OUT, ErrorType.ATTEMPT_TIMED_OUT}:
        return []
    whole = error_type == ErrorType.TASK_TIMED_OUT
    seconds = record.spec.task_seconds if whole else record.attempt_seconds
    return [TaskTimedOut(attempt=record.attempt, limit_seconds=seconds or 0, whole_task=whole)]
