"""The request to event-ingest that searches the texts of events."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request

MAX_HITS: Final = 200
SEARCHED_CHARACTERS: Final = 32_768
"""The number of characters in the text of an event that are searched."""
TextKind = Literal["message", "command", "diff", "output"]
"""`message`: messages, thoughts and texts of tasks; `command`: tools and arguments; `diff`: paths and diffs; `output`:
results, errors and final outputs."""


class TextMatch(Model):
    """The position of a searched word in a snippet: from the character `start` up to, but not including, `end`."""

    start: Count
    end: Count


class SearchHit(Model):
    """An event with the searched words. A sandbox wrote the snippet: show it as plain text."""

    id: str
    """The id of the event."""
    stream_sequence: Count
    time: Moment
    project: SafeName
    entity: SafeName
    """The sandbox or task that the event is about."""
    type: str
    kind: TextKind
    turn: Count = 0
    snippet: str
    matches: list[TextMatch]


class SearchResult(Model):
    """Hits, newest first."""

    hits: list[SearchHit]
    next_cursor: str | None = None
    """Set if there may be earlier hits. A search that takes long ends with fewer hits than the limit, or with none."""


class SearchEvents(Request[SearchResult]):
    """Search for events that have all words, newest first.

    Words consist of letters and digits; other characters separate them, and case is ignored. Words in quotes, or
    without a space between them, have to be next to each other. `-word` excludes a word; `or` separates alternatives.
    """

    Answer: ClassVar[type[BaseModel]] = SearchResult
    type: ClassVar[str] = "event-ingest.search"
    text: Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
    kinds: list[TextKind] = Field(default_factory=list, max_length=4)
    """Only these kinds of text; empty: all kinds."""
    sandbox: SafeName | None = None
    task: SafeName | None = None
    """Only events of this task and its sandboxes."""
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_HITS)] = 20
    cursor: str | None = None
    """The `next_cursor` of the last page, unchanged."""
