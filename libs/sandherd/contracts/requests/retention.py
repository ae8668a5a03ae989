"""Requests about the retention of the history: when days are dropped, and holds that prevent it."""

from datetime import date
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.archive import MAX_RESTORES, ArchiveProblem, HistoryRestore, Text
from sandherd.contracts.requests.base import Request

MAX_HOLDS: Final = 1000
"""Maximum number of holds in a herd."""
MAX_LISTED_DAYS: Final = 4000
"""Maximum number of days in a reply, which has the oldest ones."""


class HistoryHold(Model):
    """A hold: an operator has requested that these events are not dropped."""

    project: SafeName
    task: SafeName | None = None
    """Only the events of this task and its sandboxes; None: all events of the project."""
    reason: Note
    held_by: Note | None = None
    """Who requested it, according to the client."""
    held_at: Moment


class HistoryDay(Model):
    """One day (UTC) of the history, which is dropped as a whole: the events whose ids are of that day."""

    day: date | None = None
    """None: events whose date has no partition. They are deleted by the time at which they were stored."""
    events: Count = 0
    """Number of events, as estimated by Postgres; 0 also if Postgres has no estimate yet."""
    bytes: Count = 0
    """The size of the events with indexes."""
    due_at: Moment | None = None
    """When the retention of all projects with events of the day has expired; None: never."""
    held: bool = False
    """Whether a hold prevents that the day is dropped."""
    removed: Count = 0
    """Number of events with a shorter retention that were removed from the day."""
    removed_types: list[str] = Field(default_factory=list)
    """The types of events of which all were removed from the day."""
    reduced_at: Moment | None = None
    """When events were last removed from the day."""
    next_reduction_at: Moment | None = None
    """When events of further types, or of a project, are removed from the day; None: never."""


class ProjectDays(Model):
    """The retention of one project."""

    project: SafeName
    days: Count


class TypeDays(Model):
    """The retention of one type of events, in all projects."""

    type: str
    days: Count


class ArtifactStoreStatus(Model):
    """The content of the artifact store."""

    location: str
    """Where it is: a directory, or a place in a bucket."""
    contents: Count = 0
    """Number of different contents. Artifacts with the same content in one project share one."""
    bytes: Count = 0
    """The size of the contents as stored."""
    waiting: Count = 0
    """Number of artifacts that events refer to and that are not stored yet."""
    over_limit: Count = 0
    """How many of the `waiting` artifacts wait because their project has reached its maximum in the store."""
    lost: Count = 0
    """Number of artifacts that were no longer complete in their stream, or did not match the reference in their event.
    """
    problem: Text | None = None
    """Why the oldest waiting artifact could not be stored."""


class HistoryStatus(Model):
    """The retention of the whole history."""

    days: Count
    """How many days events stay stored; 0: forever."""
    project_days: list[ProjectDays] = Field(default_factory=list)
    """The retention of projects that have a setting of their own."""
    type_days: list[TypeDays] = Field(default_factory=list)
    """The retention of types of events that are removed from a day before the day is dropped."""
    task_days: Count = 0
    """Number of days after its end at which a task is deleted, if no event of it is stored; 0: never."""
    next_task_at: Moment | None = None
    """When the task that ended first can be deleted; None: never."""
    not_before: Moment | None = None
    """No day is dropped before this time, which is some days after the upgrade that introduced the retention."""
    next_drop_at: Moment | None = None
    """When the next day is dropped; None: never."""
    next_reduction_at: Moment | None = None
    """When events of some types or projects are next removed from a day; None: never."""
    bytes: Count = 0
    """The size of all events with indexes."""
    days_ahead: Count = 0
    """Number of days after today that already have a partition."""
    partitions: Annotated[list[HistoryDay], Field(max_length=MAX_LISTED_DAYS)] = Field(default_factory=list)
    """The days of the history, oldest first."""
    holds: Annotated[list[HistoryHold], Field(max_length=MAX_HOLDS)] = Field(default_factory=list)
    archive: str | None = None
    """Where days are archived before they are dropped; None: they are not archived."""
    archive_problems: Annotated[list[ArchiveProblem], Field(max_length=MAX_LISTED_DAYS)] = Field(default_factory=list)
    """The days that could not be archived, and so are not dropped."""
    restores: Annotated[list[HistoryRestore], Field(max_length=MAX_RESTORES)] = Field(default_factory=list)
    """The days that were loaded from the archive, or will be."""
    artifacts: ArtifactStoreStatus | None = None
    """The artifact store; None: artifacts are in their stream only, for at most seven days."""


class HoldReleased(Model):
    """Whether a hold was removed; there may have been none."""

    released: bool


class GetHistoryStatus(Request[HistoryStatus]):
    """Show the retention of the history: its days, when they are dropped, and holds. Only operators may do this."""

    Answer: ClassVar[type[BaseModel]] = HistoryStatus
    type: ClassVar[str] = "event-ingest.history"


class HoldHistory(Request[HistoryHold]):
    """Prevent the drop of all events of a project, or of one of its tasks. Only operators may do this.

    The hold takes effect before the reply is sent, and also covers events that are stored later. A repeated request
    changes the reason and `held_by`.
    """

    Answer: ClassVar[type[BaseModel]] = HistoryHold
    type: ClassVar[str] = "event-ingest.hold"
    task: SafeName | None = None
    """Only the events of this task and its sandboxes; None: all events of the project."""
    reason: Annotated[Note, Field(min_length=1, max_length=500)]
    held_by: Annotated[Note, Field(max_length=200)] | None = None


class ReleaseHistory(Request[HoldReleased]):
    """Remove a hold: days that are due are dropped at the next run. Only operators may do this."""

    Answer: ClassVar[type[BaseModel]] = HoldReleased
    type: ClassVar[str] = "event-ingest.release"
    task: SafeName | None = None
    """The task of the hold; None: the hold of the project."""
