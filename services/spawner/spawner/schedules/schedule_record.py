"""A schedule as it is stored in the bucket `schedules`."""

from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict

from sandherd.contracts.labels import BATCH_LABEL, NAME_LABEL
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import ScheduleRun
from sandherd.contracts.schedules import SCHEDULE_BATCH_PREFIX, ScheduleName, ScheduleSpec
from sandherd.contracts.specs import TaskSpec
from spawner.records.base_record import Record

MAX_RUNS: Final = 10
"""Maximum number of runs in a record."""


class ScheduledStart(BaseModel):
    """A task that has to be started. This is stored before the task is created, so that a due time is decided once."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: SafeName
    due_at: AwareDatetime
    at: AwareDatetime
    """When it was decided."""
    cancel: bool = False
    """Whether the schedule's other tasks are cancelled first."""
    triggered: bool = False


class ScheduleRecord(Record):
    """A schedule, with the due time up to which it is decided."""

    schedule: ScheduleName
    spec: ScheduleSpec
    paused: bool = False
    decided: AwareDatetime
    """Due times up to this one are decided."""
    waiting: AwareDatetime | None = None
    """The due time whose task starts when the running one has ended."""
    starts: tuple[ScheduledStart, ...] = ()
    """Tasks to start. They are removed when the tasks' records exist."""
    runs: tuple[ScheduleRun, ...] = ()
    """The outcomes of the last due times, newest first."""
    created_at: AwareDatetime
    updated_at: AwareDatetime
    updated_by: str | None = None

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule

    @property
    def batch(self) -> str:
        """The batch to which its tasks belong."""
        return f"{SCHEDULE_BATCH_PREFIX}{self.schedule}"

    @property
    def source(self) -> str:
        """The source of the commands that submit its tasks."""
        return f"/sandherd/spawner/schedule/{self.schedule}"

    def event_ids(self) -> dict[str, str | None]:
        """Empty, because this kind of record publishes no events."""
        return {}

    def task_spec(self) -> TaskSpec:
        """The spec of its tasks, with labels by which they are found."""
        labels = {**self.spec.task.labels, BATCH_LABEL: self.batch, NAME_LABEL: self.schedule}
        return self.spec.task.model_copy(update={"labels": labels})

    def with_runs(self, *runs: ScheduleRun) -> "ScheduleRecord":
        """The record with these runs, of which the newest is last, added in front of the earlier ones."""
        return self.model_copy(update={"runs": (*reversed(runs), *self.runs)[:MAX_RUNS]})
