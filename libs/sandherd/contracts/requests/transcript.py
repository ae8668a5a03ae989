"""The request to event-ingest for a transcript: messages of an agent and its users, calls, and results."""

from typing import ClassVar, Final, Literal

from pydantic import BaseModel

from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Page, Request

MAX_TEXT: Final = 20_000
"""Maximum number of characters in the text of an entry; the event has the complete text, or refers to it."""
TranscriptKind = Literal["input", "thought", "message", "call", "result", "edit", "error", "end"]
"""An input to the agent, its thoughts and messages, calls and their results, edits, errors, and the attempt's end."""


class TranscriptEntry(Model):
    """An entry of a transcript, made from one event. A sandbox wrote its text: show it as plain text."""

    stream_sequence: Count
    """The stream sequence of the event."""
    time: Moment
    kind: TranscriptKind
    turn: Count = 0
    text: str = ""
    cut: bool = False
    """Whether the text is only the beginning."""
    title: str | None = None
    """The tool of a call, the file of an edit, or the sender of an input."""
    tool_use_id: str | None = None
    is_error: bool = False


class Transcript(Model):
    """Entries in the requested order."""

    entries: list[TranscriptEntry]
    next_cursor: str | None = None


class GetTranscript(Request[Transcript], Page):
    """List the messages, calls, results and edits of the agent in a sandbox, oldest first unless `newest_first`."""

    Answer: ClassVar[type[BaseModel]] = Transcript
    type: ClassVar[str] = "event-ingest.transcript"
    sandbox: SafeName
    thoughts: bool = True
    """Whether to include thoughts."""
    results: bool = True
    """Whether to include results of calls."""
    newest_first: bool = False
