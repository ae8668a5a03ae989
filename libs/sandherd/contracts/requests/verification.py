"""The request to event-ingest that compares the read tables of the history with the events."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.model import Count, Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request

MAX_DIFFERENCES: Final = 200
"""Maximum number of differences in a reply."""


class HistoryDifference(Model):
    """A value in a read table that differs from the value that results from the events."""

    table: Literal["tasks", "sandboxes", "messages", "approvals", "sources"]
    project: SafeName
    name: str
    """The task, sandbox, message or approval; or the source, with the entity that it published about."""
    field: str
    """The column; empty: the whole row is missing, either in the table or in the result of the events."""
    stored: str | None = None
    """The value in the table, truncated to 300 characters; None: the table has none."""
    by_events: str | None = None
    """The value that results from the events."""


class Verification(Model):
    """The numbers of compared values, and the differences."""

    entities: Count
    """Number of compared entities: tasks, sandboxes and others that events are about."""
    incomplete: Count = 0
    """How many of `entities` have events that are no longer stored: their totals and states are not
    compared."""
    differences: list[HistoryDifference]
    """The differences; at most 200."""
    difference_count: Count
    """Number of differences, including those beyond the maximum."""
    next_cursor: str | None = None


class VerifyHistory(Request[Verification]):
    """Compare the read tables of the history with the events."""

    Answer: ClassVar[type[BaseModel]] = Verification
    type: ClassVar[str] = "event-ingest.verification"
    sandbox: SafeName | None = None
    """Only this sandbox, with its task."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    """Maximum number of entities to compare."""
    cursor: str | None = None
    """The `next_cursor` of the last page, unchanged."""
