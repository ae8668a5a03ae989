"""Requests about the archive of the history: its content, and days that are restored from it."""

from datetime import date
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request

MAX_ARCHIVED_DAYS: Final = 100
"""Maximum number of days of a reply."""
MAX_ARCHIVED_PROJECTS: Final = 100_000
"""Maximum number of rows of a reply: of one day and project each."""
MAX_RESTORES: Final = 1000
"""Maximum number of restored days and projects at a time."""
Text = Annotated[str, Field(max_length=2000)]


class ArchivedEvents(Model):
    """The events of one day and project in the archive."""

    day: date
    """The day in the ids of the events, in UTC."""
    project: SafeName
    events: Count
    bytes: Count
    """The size of their files."""
    files: Count
    """How many files: one, and one for each time that events came later."""
    archived_at: Moment
    """When the last of them was written."""


class HistoryArchives(Model):
    """A page of the archive, the newest day first."""

    location: Text
    """The directory, or the place in S3."""
    archives: Annotated[list[ArchivedEvents], Field(max_length=MAX_ARCHIVED_PROJECTS)] = Field(default_factory=list)
    next_before: date | None = None
    """The `before` of the next page; None: there are no more days."""


class ArchiveProblem(Model):
    """A day that could not be archived, and is therefore not dropped."""

    day: date
    problem: Text
    """Why, and what to do."""
    since: Moment


class HistoryRestore(Model):
    """A day that was restored from the archive at an operator's request."""

    day: date
    project: SafeName | None = None
    """Only the events of this project; None: of all."""
    until: Moment
    """It is not dropped before."""
    restored_by: Note | None = None
    """Who requested it, according to the client."""
    requested_at: Moment
    done_at: Moment | None = None
    """When it was complete; None: not yet."""
    events: Count = 0
    """How many events the archive has."""
    problem: Text | None = None
    """Why it could not be loaded; it is tried again when it is requested again."""


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
