"""Replays a session: the output of its terminal and the entries of its transcript, by time. Pure."""

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
_MAX_COMPARED: Final = 65_536
IDLE_SECONDS: Final = 2.0
"""The longest pause of a replay."""


@dataclass(frozen=True)
class ReplayFrame:
    """A text that is shown at a time of the session: output of the terminal, or an entry of the transcript."""

    time: datetime
    kind: Literal["output", "entry"]
    text: str


def replay_frames(output: Iterable[OutputChunk], entries: Iterable[TranscriptEntry]) -> list[ReplayFrame]:
    """The frames of a session, ordered by time."""
    found = [ReplayFrame(chunk.time, "output", chunk.text) for chunk in output]
    found += [ReplayFrame(entry.time, "entry", entry_text(entry)) for entry in entries]
    return sorted(found, key=lambda one: one.time)


def entry_text(entry: TranscriptEntry) -> str:
    """An entry as text: its kind and title, and its text below."""
    title = f" {entry.title}" if entry.title else ""
    return f"[{entry.kind}{title}]\n{entry.text}".rstrip() + "\n"


def without_repetitions(frames: Iterable[ReplayFrame]) -> Iterator[ReplayFrame]:
    """The frames without repeated texts: a result or an end whose text was just shown has only its first line. Pure.

    The same text of a program is in the output of the terminal, in the result of its call, and at the attempt's end.
    """
    before = ""
    for one in frames:
        text = _plain(one.text)
        head, _, body = text.partition("\n")
        again = one.kind == "entry" and head.startswith(_ENDS) and body.strip() and before.endswith(body.strip())
        if not again and one.kind == "output":
            before = f"{before}\n{text}"[-_MAX_COMPARED:].rstrip()
        elif not again:
            before = f"{before}\n{body}".rstrip()
        yield replace(one, text=f"{head}\n") if again else one


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def pauses(
    frames: Iterable[ReplayFrame], *, speed: float, idle: float = IDLE_SECONDS
) -> Iterator[tuple[float, ReplayFrame]]:
    """Each frame with the pause before it, in seconds: that of the session divided by `speed`, at most `idle`."""
    before: datetime | None = None
    for one in frames:
        waited = 0.0 if before is None else max(0.0, (one.time - before).total_seconds())
        before = one.time
        yield min(waited / speed, idle), one


def cast_lines(frames: Iterable[ReplayFrame], *, title: str, speed: float = 1.0) -> Iterator[str]:
    """The lines of an asciicast v2 file. Colours are preserved; other control characters are made visible.

    The programs that play the file send its text to a terminal unchanged.
    """
    played = list(pauses(without_repetitions(frames), speed=speed))
    header: dict[str, Any] = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": visible(title)}
    if played:
        header["timestamp"] = int(played[0][1].time.timestamp())
    yield json.dumps(header) + "\n"
    now = 0.0
    for pause, one in played:
        now += pause
        yield json.dumps([round(now, 6), "o", screen_text(one)]) + "\n"


def screen_text(frame: ReplayFrame) -> str:
    """The text of a frame for a terminal."""
    text = visible_output(frame.text, colours=True) if frame.kind == "output" else visible(frame.text)
    return text.replace("\n", "\r\n")
