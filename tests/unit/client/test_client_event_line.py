"""Events as lines, and trajectories as timelines."""

import json
import re
from collections.abc import Iterator
from datetime import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandherd.contracts
from sandherd.cli.render.console import Paint
from sandherd.cli.render.event_line import MAX_DIFF_LINES, diff, diff_line, diff_lines, format_event, gap
from sandherd.cli.render.history import sorted_by_time
from sandherd.cli.render.timeline import render_timeline, steps
from sandherd.client.events import decoder
from sandherd.client.events.sequencer import MissingRange
from sandherd.client.terminal_text import visible as safe
from sandherd.client.terminal_text import visible_output as safe_terminal
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests import HeartbeatSummary, StoredEvent, Trajectory

GOLDEN = Path(sandherd.contracts.__file__).parent / "golden" / "v1" / "events"
PLAIN = Paint(on=False)


def golden() -> Iterator[StoredEvent]:
    for number, path in enumerate(sorted(GOLDEN.rglob("*.json")), 1):
        yield StoredEvent(stream_sequence=number, envelope=json.loads(path.read_text()))


def test_every_type_of_event_is_a_line() -> None:
    """Each golden example is a line with its time and type, and no control character."""
    shown = {}
    for stored in golden():
        event = decoder.from_history(stored)
        lines = list(format_event(event, PLAIN))
        shown[event.type] = lines[0]
        assert event.type in lines[0]
        assert all(line.isprintable() for line in lines)
    assert shown.keys() == EVENTS.keys()


def test_every_type_of_event_is_in_a_timeline() -> None:
    """A trajectory of every event makes a timeline, calls joined with their results."""
    stored = list(golden())
    page = Trajectory(
        sandbox_id="sbx-one",
        events=stored,
        heartbeat_summary=HeartbeatSummary(count=0),
        total_events=len(stored),
        trajectory_events=len(stored),
    )
    assert len(list(render_timeline([page], PLAIN))) > len(EVENTS) // 2
    assert steps([]) == []


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_line_of_a_diff_ends_at_a_line_feed_only(end: str) -> None:
    """An agent's text can't begin a line of its own, which would look like one of another file."""
    forged = f"+text{end}diff --git a/x b/x\n+more\r\n"
    assert len(diff_lines(forged)) == 2
    lines = list(diff(forged, PLAIN))
    assert len(lines) == 2
    assert end not in lines[0]
    assert lines[0].startswith("    +text")
    assert lines[1] == "    +more"


def test_diff_line_moves_no_cursor() -> None:
    """`sandherd diff` shows a sandbox's text on a terminal without control characters."""
    assert "\x1b" not in diff_line("+\x1b]52;c;x\x07", PLAIN)


def test_trajectory_is_sorted_by_time() -> None:
    """Rows are in the order of their times, and rows of one moment in the order of the stream."""
    envelope = next(golden()).envelope
    times = [
        "2026-11-20T12:00:02+00:00",
        "2026-11-20T12:00:01.5Z",
        "2026-11-20T12:00:01.500000Z",
        "2026-11-20T12:00:00Z",
    ]
    stored = [StoredEvent(stream_sequence=n, envelope=envelope | {"time": time}) for n, time in enumerate(times)]
    page = Trajectory(
        sandbox_id="sbx-one",
        events=[stored[0], stored[2], stored[1], stored[3]],
        heartbeat_summary=HeartbeatSummary(count=0),
        total_events=4,
        trajectory_events=4,
    )
    assert [event.stream_sequence for event in sorted_by_time(page).events] == [3, 1, 2, 0]


def test_timeline_measures_an_attempt_until_its_end() -> None:
    """A message that is sent much later does not make the attempt longer."""
    found = {stored.envelope["type"]: stored for stored in golden()}
    wanted = [("agent.started", "00:00"), ("agent.completed", "00:03"), ("message.queued", "23:20")]
    events = [
        StoredEvent(
            stream_sequence=n,
            envelope=found[kind].envelope | {"time": f"2026-11-20T12:{time}Z", "sandboxid": "sbx-one"},
        )
        for n, (kind, time) in enumerate(wanted)
    ]
    page = Trajectory(
        sandbox_id="sbx-one",
        events=events,
        heartbeat_summary=HeartbeatSummary(count=0),
        total_events=3,
        trajectory_events=3,
    )
    head = list(render_timeline([page], PLAIN))[1]
    assert head == "2 events in 3.0 s and 1 after the end of the attempt, no heartbeats"


def test_time_of_an_event_has_its_zone() -> None:
    """A local time without its zone could not be compared with times from other machines."""
    event = decoder.from_history(next(golden()))
    shown = next(format_event(event, PLAIN)).split()[0]
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", shown)
    assert time.fromisoformat(shown).utcoffset() == event.time.astimezone().utcoffset()


def test_a_summary_has_no_control_characters() -> None:
    """The summary of a class is raw text; a line shows it without what a terminal would obey."""
    stored = next(each for each in golden() if each.envelope["type"] == "agent.message")
    envelope = stored.envelope | {"data": {"content": "a\x1b[2J\nb", "content_length": 6}}
    event = decoder.from_history(StoredEvent(stream_sequence=1, envelope=envelope))
    assert "\x1b" in event.data.summarize()
    assert all(line.isprintable() for line in format_event(event, PLAIN))


def test_unknown_event_is_shown_with_its_fields() -> None:
    """A type that this version doesn't know is shown by the default summary."""
    stored = next(golden())
    envelope = stored.envelope | {"type": "agent.danced", "data": {"style": "tango", "turn": 3}}
    event = decoder.from_history(StoredEvent(stream_sequence=1, envelope=envelope))
    assert "style=tango" in next(format_event(event, PLAIN))


@given(st.text())
def test_no_text_moves_the_cursor(text: str) -> None:
    """Whatever is printed has no control characters but line breaks and tabs."""
    assert not [c for c in safe(text) if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]


@pytest.mark.parametrize("code", ["\x1b]52;c;aGk=\x07", "\x1b[2J", "\x1b[?1049h", "\x1bc", "\x9b31m", "\x1b[3;3H"])
def test_only_colours_come_through(code: str) -> None:
    """Terminal output keeps its colours where they are wanted, and nothing else that a terminal would obey."""
    shown = safe_terminal(f"a{code}b\x1b[31mred\x1b[0m", colours=True)
    assert shown.count("\x1b") == 2
    assert "\x1b[31mred\x1b[0m" in shown
    assert "\x1b" not in safe_terminal(f"a{code}b\x1b[31mred", colours=False)


def test_a_long_diff_is_truncated() -> None:
    """A diff is cut at a screenful or so, and the rest is counted."""
    lines = list(diff("+x\n" * (MAX_DIFF_LINES + 5), PLAIN))
    assert len(lines) == MAX_DIFF_LINES + 1
    assert "5 more lines" in lines[-1]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (MissingRange("/s", 3, 3), "event 3 of /s"),
        (MissingRange("/s", 3, 5), "events 3 to 5 of /s"),
        (MissingRange("/s", 4, None), "after number 3"),
    ],
)
def test_a_gap_is_described(missing: MissingRange, words: str) -> None:
    """The description names the source and the numbers of the missing events."""
    assert words in gap(missing)


def test_messages_and_budgets_are_lines_with_units() -> None:
    """Lines name no raw fields: they have the sender and size of a message, and the used budget with its unit."""
    shown = {}
    for stored in golden():
        event = decoder.from_history(stored)
        shown[event.type] = event.data.summarize()
    of_messages = [line for name, line in shown.items() if name.startswith(("message.", "approval.", "monitor.budget"))]
    assert len(of_messages) > 10
    assert [line for line in of_messages if re.search(r"\w=", line)] == []
    assert re.fullmatch(r"msg-\S+, \w+ from \S+, \d+ characters?", shown["message.queued"])
    assert "USD of" in shown["monitor.budget_exceeded"]
