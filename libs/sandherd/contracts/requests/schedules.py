"""Requests about schedules: set, list, pause, trigger, delete."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.model import Model, Moment, Number
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.schedules import Overlap, RunOutcome, ScheduleName, ScheduleSpec
from sandherd.contracts.specs import TaskSpec


class ScheduleRun(Model):
    """The outcome of a due time, or of several consecutive ones."""

    due_at: Moment
    """The due time; if there are several, the first."""
    outcome: RunOutcome
    at: Moment
    """When it was decided."""
    task: SafeName | None = None
    """The task that was started, or refused."""
    due_times: Number = 1
    """Number of consecutive due times with this outcome."""
    triggered: bool = False
    """Whether a user started the task, not the schedule."""
    reason: Note | None = None


class ScheduleView(Model):
    """A schedule."""

    project: SafeName
    name: ScheduleName
    cron: str
    time_zone: str
    overlap: Overlap
    catch_up_seconds: Number
    text: str
    """The text of the task."""
    paused: bool = False
    created_at: Moment
    updated_at: Moment
    updated_by: Note | None = None
    """Who set the schedule, according to the client."""
    next_times: list[Moment] = Field(default_factory=list)
    """The next due times; none while it is paused."""
    waiting: Moment | None = None
    """The due time of the task that starts when the running one has ended (`buffer_one`)."""
    running: list[SafeName] = Field(default_factory=list)
    """The tasks of the schedule that have not ended."""
    runs: list[ScheduleRun] = Field(default_factory=list)
    """The outcomes of the last due times, newest first."""
    task: TaskSpec | None = None
    """The task. It is omitted in a list of all schedules."""


class ScheduleList(Model):
    """Schedules, by name."""

    schedules: list[ScheduleView]


class SetSchedule(Request[ScheduleView]):
    """Create a schedule, or replace one. Due times before this request start no task."""

    Answer: ClassVar[type[BaseModel]] = ScheduleView
    type: ClassVar[str] = "spawner.set_schedule"
    name: ScheduleName
    schedule: ScheduleSpec
    replace: bool = False
    """Whether to replace a schedule of this name; otherwise an existing one is a `conflict`."""
    updated_by: Annotated[Note, Field(max_length=200)] | None = None


class ListSchedules(Request[ScheduleList]):
    """List schedules, or return one."""

    Answer: ClassVar[type[BaseModel]] = ScheduleList
    type: ClassVar[str] = "spawner.schedules"
    name: ScheduleName | None = None
    """The schedule to return, with its task; None: all."""


class PauseSchedule(Request[ScheduleView]):
    """Pause a schedule, or resume it. Due times while it is paused start no task, not even later."""

    Answer: ClassVar[type[BaseModel]] = ScheduleView
    type: ClassVar[str] = "spawner.pause_schedule"
    name: ScheduleName
    paused: bool = True


class ScheduleTriggered(Model):
    """A task of a schedule will be started immediately."""

    name: ScheduleName
    task: SafeName
    """The task's name."""


class TriggerSchedule(Request[ScheduleTriggered]):
    """Start a task of a schedule now, independently of its overlap policy, even while it is paused."""

    Answer: ClassVar[type[BaseModel]] = ScheduleTriggered
    type: ClassVar[str] = "spawner.trigger_schedule"
    name: ScheduleName


class ScheduleDeleted(Model):
    """A schedule was deleted. Its tasks are not affected."""

    name: ScheduleName


class DeleteSchedule(Request[ScheduleDeleted]):
    """Delete a schedule."""

    Answer: ClassVar[type[BaseModel]] = ScheduleDeleted
    type: ClassVar[str] = "spawner.delete_schedule"
    name: ScheduleName
