"""Shows the result of `sandherd transcript`."""

from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Final

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.console import Paint
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import TranscriptEntry

_INDENT: Final = "    "
_COLOURS: Final = MappingProxyType(
    {"input": "cyan", "thought": "dim", "call": "yellow", "edit": "blue", "error": "red", "end": "bold"}
)


async def show(entries: AsyncIterator[TranscriptEntry], output: Format) -> None:
    """Show entries as they arrive."""
    paint, turn, empty = Paint.for_screen(), 0, True
    async for entry in entries:
        empty = False
        if output.is_json:
            console.print_line(entry)
            continue
        if entry.turn > turn:
            turn = entry.turn
            write_text(paint(f"turn {turn}", "bold"))
        for text in entry_lines(entry, paint):
            write_text(text)
    if empty and not output.is_json:
        write_text("none")


def entry_lines(entry: TranscriptEntry, paint: Paint) -> list[str]:
    """The lines of an entry: its time, kind and title, and its text below. Pure."""
    title = f" {entry.title}" if entry.title else ""
    failed = " (error)" if entry.is_error and entry.kind == "result" else ""
    time = entry.time.astimezone().strftime("%H:%M:%S")
    head = paint(f"{time} {entry.kind}{title}{failed}".replace("\n", " "), _COLOURS.get(entry.kind))
    cut = [f"{_INDENT}[cut off; the event {entry.stream_sequence} has more]"] if entry.cut else []
    return [head, *(f"{_INDENT}{line}" for line in entry.text.splitlines()), *cut]
