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
    """A task to start. It is stored before the task is created, so that each due time is decided only once."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: SafeName
    due_at: AwareDatetime
    at: AwareDatetime
    """When the start was decided."""
    cancel: bool = False
    """Whether the schedule's other tasks are cancelled first."""
    triggered: bool = False
    """Whether a user requested the start."""


class ScheduleRecord(Record):
    """A schedule, with its decided due times and the starts of tasks that are not carried out yet."""

    schedule: ScheduleName
    spec: ScheduleSpec
    paused: bool = False
    decided: AwareDatetime
    """Due times up to this one are decided."""
    waiting: AwareDatetime | None = None
    """The due time whose task starts when the running one has ended."""
    starts: tuple[ScheduledStart, ...] = ()
    """Tasks to start. Each is removed when its task has been created, or was refused or missed."""
    runs: tuple[ScheduleRun, ...] = ()
    """The outcomes of the last due times and triggered starts, newest first."""
    created_at: AwareDatetime
    updated_at: AwareDatetime
    updated_by: str | None = None

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule

    @property
    def batch(self) -> str:
        """The batch to which the schedule's tasks belong."""
        return f"{SCHEDULE_BATCH_PREFIX}{self.schedule}"

    @property
    def source(self) -> str:
        """The source of the commands that submit the schedule's tasks."""
        return f"/sandherd/spawner/schedule/{self.schedule}"

    def event_ids(self) -> dict[str, str | None]:
        """Empty, because this kind of record publishes no events."""
        return {}

    def task_spec(self) -> TaskSpec:
        """The spec of the schedule's tasks, with the labels by which they are found."""
        labels = {**self.spec.task.labels, BATCH_LABEL: self.batch, NAME_LABEL: self.schedule}
        return self.spec.task.model_copy(update={"labels": labels})

    def with_runs(self, *runs: ScheduleRun) -> "ScheduleRecord":
        """The record with these runs added to the earlier ones. The newest of `runs` is the last argument."""
        return self.model_copy(update={"runs": (*reversed(runs), *self.runs)[:MAX_RUNS]})
