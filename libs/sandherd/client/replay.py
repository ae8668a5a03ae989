"""A session as it is played again: what its terminal showed and what was written and called, by time. Pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from sandherd.client.terminal_text import visible, visible_output
from sandherd.contracts.requests import OutputChunk, TranscriptEntry

WIDTH: Final = 100
HEIGHT: Final = 30
_ENDS: Final = ("[result", "[end")
_REMEMBERED: Final = 65_536
IDLE_SECONDS: Final = 2.0
"""A pause is played for at most so long."""


@dataclass(frozen=True)
class ReplayFrame:
    """What is shown at a time of the session: output of the terminal, or the lines of an entry of the transcript."""

    time: datetime
    kind: Literal["output", "entry"]
    text: str


def replay_frames(output: Iterable[OutputChunk], entries: Iterable[TranscriptEntry]) -> list[ReplayFrame]:
    """All in the order of time."""
    found = [ReplayFrame(chunk.time, "output", chunk.text) for chunk in output]
    found += [ReplayFrame(entry.time, "entry", entry_text(entry)) for entry in entries]
    return sorted(found, key=lambda one: one.time)


def entry_text(entry: TranscriptEntry) -> str:
    """An entry as text: its kind and title, and its text below."""
    title = f" {entry.title}" if entry.title else ""
    return f"[{entry.kind}{title}]\n{entry.text}".rstrip() + "\n"


def without_repetitions(shown: Iterable[ReplayFrame]) -> Iterator[ReplayFrame]:
    """The frames; of a result or an end whose text was shown just before only the first line. Pure.

    What a program prints is output of the terminal, the result of its call, and the end of the attempt.
    """
    before = ""
    for one in shown:
        text = _plain(one.text)
        head, _, body = text.partition("\n")
        again = one.kind == "entry" and head.startswith(_ENDS) and body.strip() and before.endswith(body.strip())
        if not again and one.kind == "output":
            before = f"{before}\n{text}"[-_REMEMBERED:].rstrip()
        elif not again:
            before = f"{before}\n{body}".rstrip()
        yield replace(one, text=f"{head}\n") if again else one


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def pauses(
    shown: Iterable[ReplayFrame], *, speed: float, idle: float = IDLE_SECONDS
) -> Iterator[tuple[float, ReplayFrame]]:
    """Each frame with the seconds to wait before it: those of the session divided by `speed`, and at most `idle`."""
    before: datetime | None = None
    for one in shown:
        waited = 0.0 if before is None else max(0.0, (one.time - before).total_seconds())
        before = one.time
        yield min(waited / speed, idle), one


def cast_lines(shown: Iterable[ReplayFrame], *, title: str, speed: float = 1.0) -> Iterator[str]:
    """The lines of an asciicast v2 file. Colours of the terminal remain; other control characters are made visible.

    A recording is played by other programs, which send it to a terminal as it is.
    """
    played = list(pauses(without_repetitions(shown), speed=speed))
    header: dict[str, Any] = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": visible(title)}
    if played:
        header["timestamp"] = int(played[0][1].time.timestamp())
    yield json.dumps(header) + "\n"
    now = 0.0
    for pause, one in played:
        now += pause
        yield json.dumps([round(now, 6), "o", screen_text(one)]) + "\n"


def screen_text(one: ReplayFrame) -> str:
    """What a terminal shows of it."""
    text = visible_output(one.text, colours=True) if one.kind == "output" else visible(one.text)
    return text.replace("\n", "\r\n")
