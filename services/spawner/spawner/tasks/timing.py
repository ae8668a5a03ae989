"""How long a task and each of its attempts may take: when that is over, and what is said then. All pure."""

from dataclasses import dataclass
from datetime import datetime

from sandherd.contracts.events.lifecycle import TaskTimedOut
from sandherd.contracts.failures import ErrorType
from spawner.tasks.record import TaskRecord


@dataclass(frozen=True)
class Limit:
    """A limit of time that a task has: how long, in seconds, and when it is over."""

    seconds: float
    over_at: datetime
    whole_task: bool

    @property
    def error_type(self) -> ErrorType:
        """What the task or its attempt fails with."""
        return ErrorType.TASK_TIMED_OUT if self.whole_task else ErrorType.ATTEMPT_TIMED_OUT

    @property
    def error(self) -> str:
        """The same in words."""
        return f"{'the task' if self.whole_task else 'the attempt'} took longer than {self.seconds:g} s"


def limit_of(record: TaskRecord) -> Limit | None:
    """The limit that is over first. An ended task has none."""
    found = record.limits_over()
    return Limit(seconds=found[0][1], over_at=found[0][0], whole_task=found[0][2]) if found else None


def said_of(record: TaskRecord, error_type: str) -> list[TaskTimedOut]:
    """What is said when a task fails with this, beside that it does: which limit was over."""
    if error_type not in {ErrorType.TASK_TIMED_OUT, ErrorType.ATTEMPT_TIMED_OUT}:
        return []
    whole = error_type == ErrorType.TASK_TIMED_OUT
    seconds = record.spec.task_seconds if whole else record.attempt_seconds
    return [TaskTimedOut(attempt=record.attempt, limit_seconds=seconds or 0, whole_task=whole)]
