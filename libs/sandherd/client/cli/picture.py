"""The picture of a run: a line for each thing that was done, from when on, how long it took, and edits with diffs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sandherd.client import heard
from sandherd.client.cli.colours import Paint
from sandherd.client.cli.telling import diff, shortened, what
from sandherd.client.sequencing import Event
from sandherd.contracts.requests import HeartbeatSummary, Trajectory

LONGEST_BAR: Final = 20
TEXT: Final = 100
_MARGIN: Final = " " * 10
_SIGNS: Final = {
    "agent.started": ("▶", "bold"),
    "agent.message": ("»", "bold"),
    "agent.thinking": ("…", "dim"),
    "agent.user_message": ("«", "blue"),
    "agent.message_injected": ("«", "blue"),
    "agent.tool_use": ("⚙", "cyan"),
    "agent.file_edited": ("✎", "yellow"),
    "agent.error": ("!", "red"),
    "agent.completed": ("✓", "green"),
    "agent.failed": ("✗", "red"),
    "agent.shutdown": ("■", "dim"),
}


@dataclass(frozen=True)
class Step:
    """One thing that was done, `at` seconds after the beginning. `seconds` is None for what takes no time."""

    event: Event
    at: float
    seconds: float | None = None
    failed: bool = False


def steps(events: Sequence[Event]) -> list[Step]:
    """Calls joined with what ended them; everything else by itself."""
    if not events:
        return []
    begin = min(event.time for event in events)
    opened = {key for event in events if (key := _key(event, "opens"))}
    ends: dict[str, Event] = {}
    for event in events:
        if key := _key(event, "closes"):
            ends.setdefault(key, event)
    return [
        _step(event, (event.time - begin).total_seconds(), ends.get(_key(event, "opens") or ""))
        for event in events
        if _key(event, "closes") not in opened
    ]


def draw(pages: Sequence[Trajectory], paint: Paint) -> Iterator[str]:
    """The lines of the picture."""
    events = [heard.kept(stored) for page in pages for stored in page.events]
    drawn = steps(events)
    yield from _head(pages[-1], drawn, paint)
    longest = max((step.seconds or 0 for step in drawn), default=0)
    for step in drawn:
        yield _line(step, longest, paint)
        if step.event.type == "agent.file_edited":
            text = step.event.data.full_diff or step.event.data.diff_preview
            yield from (f"{_MARGIN}{line}" for line in diff(text, paint))


def _step(event: Event, at: float, end: Event | None) -> Step:
    if end is None:
        return Step(event, at)
    given = getattr(end.data, "duration_ms", None)
    seconds = given / 1000 if given is not None else (end.time - event.time).total_seconds()
    return Step(event, at, max(0.0, seconds), bool(getattr(end.data, "is_error", False)))


def _key(event: Event, which: str) -> str | None:
    """The key of the call that an event opens or closes."""
    field = getattr(type(event.data), which, None)
    return getattr(event.data, field, None) if field else None


def _head(page: Trajectory, drawn: Sequence[Step], paint: Paint) -> Iterator[str]:
    took = max((step.at + (step.seconds or 0) for step in drawn), default=0.0)
    yield paint(page.sandbox_id, "bold")
    yield f"{page.trajectory_events} events in {took:.1f} s, {_heartbeats(page.heartbeat_summary)}"
    yield ""


def _heartbeats(summary: HeartbeatSummary) -> str:
    if not summary.count or summary.last_heartbeat is None:
        return "no heartbeats"
    last = summary.last_heartbeat.astimezone().strftime("%H:%M:%S")
    return f"{summary.count} heartbeat{'s' if summary.count > 1 else ''}, the last at {last}"


def _line(step: Step, longest: float, paint: Paint) -> str:
    sign, colour = _SIGNS.get(step.event.type, ("·", None))
    if step.failed:
        colour = "red"
    said = what(step.event)
    known = step.event.type in _SIGNS
    text = shortened(said if known else f"{step.event.type} {said}", TEXT)
    return f"{paint(f'{step.at:>9.3f} s', 'dim')}  {paint(sign, colour)} {text}{_bar(step, longest, paint)}".rstrip()


def _bar(step: Step, longest: float, paint: Paint) -> str:
    if step.seconds is None:
        return ""
    width = round(LONGEST_BAR * step.seconds / longest) if longest else 0
    return f"  {paint('▇' * max(1, width), 'cyan')} {step.seconds:.3f} s"
