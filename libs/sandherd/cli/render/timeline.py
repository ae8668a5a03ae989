"""Formats the timeline of a sandbox: a line for each step, with its start and duration; edits with their diffs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sandherd.cli.render.console import Paint
from sandherd.cli.render.event_line import COLOURS, diff, shortened, summarize
from sandherd.client.events import decoder
from sandherd.client.events.sequencer import Event
from sandherd.contracts.events.base import Tone
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.contracts.requests import HeartbeatSummary, Trajectory
from sandherd.plurals import pluralize

MAX_BAR_WIDTH: Final = 20
"""The characters of the bar of the longest step."""
MAX_TEXT_LENGTH: Final = 100
"""Maximum number of characters of the text of a step."""
_MARGIN: Final = " " * 10
_NO_SYMBOL: Final = "·"
"""The symbol of an event without one; the type of the event follows."""
_COLOURS: Final[Mapping[Tone | None, str]] = {**COLOURS, "input": "blue", "start": "bold", "background": "dim"}


@dataclass(frozen=True)
class TimelineStep:
    """A step that begins `at` seconds after the first event. `seconds` is its duration; None if it has none."""

    event: Event
    at: float
    seconds: float | None = None
    failed: bool = False


def steps(events: Sequence[Event]) -> list[TimelineStep]:
    """The steps of a timeline. A call and the event that closes it are one step; every other event is a step."""
    if not events:
        return []
    begin = min(event.time for event in events)
    opened = {key for event in events if (key := _call_key(event, "opens"))}
    ends: dict[str, Event] = {}
    for event in events:
        if key := _call_key(event, "closes"):
            ends.setdefault(key, event)
    return [
        _step(event, (event.time - begin).total_seconds(), ends.get(_call_key(event, "opens") or ""))
        for event in events
        if _call_key(event, "closes") not in opened
    ]


def render_timeline(pages: Sequence[Trajectory], paint: Paint) -> Iterator[str]:
    """The lines of the timeline."""
    events = [decoder.from_history(stored) for page in pages for stored in page.events]
    timeline_steps = steps(events)
    yield from _heading(pages[-1], timeline_steps, paint)
    longest = max((step.seconds or 0 for step in timeline_steps), default=0)
    for step in timeline_steps:
        yield _line(step, longest, paint)
        if isinstance(edit := step.event.data, AgentFileEdited):
            text = edit.full_diff or edit.diff_preview
            yield from (f"{_MARGIN}{line}" for line in diff(text, paint))


def _step(event: Event, at: float, end: Event | None) -> TimelineStep:
    if end is None:
        return TimelineStep(event, at)
    duration = getattr(end.data, "duration_ms", None)
    seconds = duration / 1000 if duration is not None else (end.time - event.time).total_seconds()
    return TimelineStep(event, at, max(0.0, seconds), bool(getattr(end.data, "is_error", False)))


def _call_key(event: Event, attribute: str) -> str | None:
    """The key of the call that an event opens or closes."""
    field = getattr(type(event.data), attribute, None)
    return getattr(event.data, field, None) if field else None


def _heading(page: Trajectory, timeline_steps: Sequence[TimelineStep], paint: Paint) -> Iterator[str]:
    end = next((step.at for step in timeline_steps if getattr(type(step.event.data), "terminal", False)), None)
    took = max((step.at + (step.seconds or 0) for step in timeline_steps if end is None or step.at <= end), default=0.0)
    later = sum(end is not None and step.at > end for step in timeline_steps)
    after_end = f" and {later} after the end of the attempt" if later else ""
    yield paint(page.sandbox_id, "bold")
    events = pluralize(page.trajectory_events - later, "event")
    yield f"{events} in {took:.1f} s{after_end}, {_heartbeats_text(page.heartbeat_summary)}"
    yield ""


def _heartbeats_text(summary: HeartbeatSummary) -> str:
    if not summary.count or summary.last_heartbeat is None:
        return "no heartbeats"
    last = summary.last_heartbeat.astimezone().timetz().isoformat("seconds")
    return f"{pluralize(summary.count, 'heartbeat')}, the last at {last}"


def _line(step: TimelineStep, longest: float, paint: Paint) -> str:
    data, summary = step.event.data, summarize(step.event)
    symbol, colour = (data.symbol, _COLOURS.get(data.tone)) if data.symbol else (_NO_SYMBOL, None)
    if step.failed:
        colour = "red"
    text = shortened(summary if data.symbol else f"{step.event.type} {summary}", MAX_TEXT_LENGTH)
    return f"{paint(f'{step.at:>9.3f} s', 'dim')}  {paint(symbol, colour)} {text}{_bar(step, longest, paint)}".rstrip()


def _bar(step: TimelineStep, longest: float, paint: Paint) -> str:
    if step.seconds is None:
        return ""
    width = round(MAX_BAR_WIDTH * step.seconds / longest) if longest else 0
    return f"  {paint('▇' * max(1, width), 'cyan')} {step.seconds:.3f} s"
