"""Requests about the archive of the history: its content, and days that are restored from it."""

from datetime import date
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request

MAX_ARCHIVED_DAYS: Final = 100
"""Maximum number of days in a reply."""
MAX_ARCHIVED_PROJECTS: Final = 100_000
"""Maximum number of rows in a reply. Each row is about one day and project."""
MAX_RESTORES: Final = 1000
"""Maximum number of restored days, or days of a project, at a time."""
Text = Annotated[str, Field(max_length=2000)]


class ArchivedEvents(Model):
    """The events of one day and project in the archive."""

    day: date
    """The day in the ids of the events, in UTC."""
    project: SafeName
    events: Count
    bytes: Count
    """The size of the files with these events."""
    files: Count
    """Number of files: one, and one more each time that events of the day were archived later."""
    archived_at: Moment
    """When the last file was written."""


class HistoryArchives(Model):
    """A page of the archive, the newest day first."""

    location: Text
    """The directory or the place in S3."""
    archives: Annotated[list[ArchivedEvents], Field(max_length=MAX_ARCHIVED_PROJECTS)] = Field(default_factory=list)
    next_before: date | None = None
    """The `before` of the next page; None: there are no more days."""


class ArchiveProblem(Model):
    """A day that could not be archived, and is therefore not dropped."""

    day: date
    problem: Text
    """Why the day could not be archived, and what to do."""
    since: Moment


class HistoryRestore(Model):
    """A day that was restored from the archive at an operator's request."""

    day: date
    project: SafeName | None = None
    """Only the events of this project are restored; None: the events of all projects."""
    until: Moment
    """The day is not dropped before this time."""
    restored_by: Note | None = None
    """Who requested it, according to the client."""
    requested_at: Moment
    done_at: Moment | None = None
    """When the restore was complete; None: it is not complete yet."""
    events: Count = 0
    """Number of events of the day in the archive."""
    problem: Text | None = None
    """Why the day could not be loaded. Another request for it tries again."""


class ListHistoryArchives(Request[HistoryArchives]):
    """List the days in the archive of the history. Only operators may do this."""

    Answer: ClassVar[type[BaseModel]] = HistoryArchives
    type: ClassVar[str] = "event-ingest.archives"
    before: date | None = None
    """Only older days."""
    limit: Annotated[int, Field(ge=1, le=MAX_ARCHIVED_DAYS)] = MAX_ARCHIVED_DAYS
    """Maximum number of days."""


class RestoreHistory(Request[HistoryRestore]):
    """Restore a day from the archive into the history. Only operators may do this.

    The reply arrives before the restore is complete; `event-ingest.history` shows when it is. A repeated request sets a
    new time, and loads no event twice.
    """

    Answer: ClassVar[type[BaseModel]] = HistoryRestore
    type: ClassVar[str] = "event-ingest.restore"
    day: date
    days: Annotated[int, Field(ge=1, le=3650)] = 7
    """Number of days after which it may be dropped again."""
    restored_by: Annotated[Note, Field(max_length=200)] | None = None
