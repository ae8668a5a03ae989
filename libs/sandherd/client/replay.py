"""Replays a session: the output of its terminal and the entries of its transcript, by time. Pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from sandherd.client.terminal_text import visible, visible_output
from sandherd.contracts.requests import OutputChunk, TranscriptEntry

WIDTH: Final = 100
"""The columns of the terminal in an asciicast file."""
HEIGHT: Final = 30
"""The lines of the terminal in an asciicast file."""
_REPEATING_HEADS: Final = ("[result", "[end")
"""How the text of an entry begins that may repeat the output before it."""
_MAX_COMPARED_CHARACTERS: Final = 65_536
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
    frames = [ReplayFrame(chunk.time, "output", chunk.text) for chunk in output]
    frames += [ReplayFrame(entry.time, "entry", entry_text(entry)) for entry in entries]
    return sorted(frames, key=lambda frame: frame.time)


def entry_text(entry: TranscriptEntry) -> str:
    """An entry as text: its kind and title, and its text below."""
    title = f" {entry.title}" if entry.title else ""
    return f"[{entry.kind}{title}]\n{entry.text}".rstrip() + "\n"


def without_repetitions(frames: Iterable[ReplayFrame]) -> Iterator[ReplayFrame]:
    """The frames without repeated texts. Of a result or an end whose text was just shown, only its first line remains.

    A program's text may be in the output of the terminal, in the result of its call, and at the attempt's end. Pure.
    """
    shown_text = ""
    for frame in frames:
        text = _plain(frame.text)
        head, _, body = text.partition("\n")
        may_repeat = frame.kind == "entry" and head.startswith(_REPEATING_HEADS)
        is_repeated = may_repeat and body.strip() and shown_text.endswith(body.strip())
        if not is_repeated and frame.kind == "output":
            shown_text = f"{shown_text}\n{text}"[-_MAX_COMPARED_CHARACTERS:].rstrip()
        elif not is_repeated:
            shown_text = f"{shown_text}\n{body}".rstrip()
        yield replace(frame, text=f"{head}\n") if is_repeated else frame


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def with_pauses(
    frames: Iterable[ReplayFrame], *, speed: float, idle: float = IDLE_SECONDS
) -> Iterator[tuple[float, ReplayFrame]]:
    """Each frame with the pause before it in seconds: the pause in the session divided by `speed`, at most `idle`."""
    previous: datetime | None = None
    for frame in frames:
        waited = 0.0 if previous is None else max(0.0, (frame.time - previous).total_seconds())
        previous = frame.time
        yield min(waited / speed, idle), frame


def cast_lines(frames: Iterable[ReplayFrame], *, title: str, speed: float = 1.0) -> Iterator[str]:
    """The lines of an asciicast v2 file. Colours are preserved; other control characters are made visible.

    The programs that play the file send its text to a terminal unchanged.
    """
    played = list(with_pauses(without_repetitions(frames), speed=speed))
    header: dict[str, Any] = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": visible(title)}
    if played:
        header["timestamp"] = int(played[0][1].time.timestamp())
    yield json.dumps(header) + "\n"
    now = 0.0
    for pause, frame in played:
        now += pause
        yield json.dumps([round(now, 6), "o", screen_text(frame)]) + "\n"


def screen_text(frame: ReplayFrame) -> str:
    """The text of a frame for a terminal, whose lines end with a carriage return and a line feed."""
    text = visible_output(frame.text, colours=True) if frame.kind == "output" else visible(frame.text)
    return text.replace("\n", "\r\n")
