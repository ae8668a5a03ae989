"""Formats an event as one line with time, type and summary; the diff of an edit follows."""

from collections.abc import Iterator, Mapping
from typing import Final

from sandherd.cli.render.console import Paint
from sandherd.client.events.sequencer import Event, MissingRange
from sandherd.client.terminal_text import visible, visible_line
from sandherd.contracts.events.base import Tone
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.plurals import pluralize

MAX_TEXT_LENGTH: Final = 200
"""Maximum number of characters of a text in a line."""
MAX_DIFF_LINES: Final = 200
"""Maximum number of lines of a diff to show; the event has the whole diff."""
_TYPE_WIDTH: Final = 24

COLOURS: Final[Mapping[Tone | None, str]] = {
    "success": "green",
    "failure": "red",
    "attention": "yellow",
    "action": "cyan",
    "output": "bold",
    "routine": "dim",
}
"""The colours of events by their tone. A timeline has colours for more tones."""


def format_event(event: Event, paint: Paint) -> Iterator[str]:
    """The lines of an event."""
    time = event.time.astimezone().timetz().isoformat("milliseconds")
    kind = f"{event.type:<{_TYPE_WIDTH}}"
    yield f"{paint(time, 'dim')}  {paint(kind, COLOURS.get(event.data.tone))} {summarize(event)}".rstrip()
    if isinstance(event.data, AgentFileEdited):
        yield from diff(event.data.full_diff or event.data.diff_preview, paint)


def summarize(event: Event) -> str:
    """The summary of an event, without its type, on one line and without control characters."""
    return shortened(event.data.summarize())


def shortened(text: str, limit: int = MAX_TEXT_LENGTH) -> str:
    """The text as one line of no more than `limit` characters."""
    line = visible_line(text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def diff(text: str, paint: Paint) -> Iterator[str]:
    """A unified diff, indented."""
    lines = diff_lines(text)
    for line in lines[:MAX_DIFF_LINES]:
        yield "    " + diff_line(line, paint)
    if len(lines) > MAX_DIFF_LINES:
        yield f"    … {pluralize(len(lines) - MAX_DIFF_LINES, 'more line')}"


def diff_lines(text: str) -> list[str]:
    """The lines of a diff, split at line feeds only: other line separators of Unicode are part of the file's text."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []


def diff_line(line: str, paint: Paint) -> str:
    """One line of a diff, without control characters."""
    return paint(visible(line), _diff_colour(line))


def gap(missing: MissingRange) -> str:
    """A description of missing events."""
    if missing.last is None:
        return f"events of {missing.source} after number {missing.first - 1} may be missing"
    if missing.first == missing.last:
        return f"event {missing.first} of {missing.source} could not be shown"
    return f"events {missing.first} to {missing.last} of {missing.source} could not be shown"


def _diff_colour(line: str) -> str | None:
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
