"""Events as lines, and runs as pictures."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandherd.contracts
from sandherd.client import heard
from sandherd.client.cli.colours import Paint
from sandherd.client.cli.picture import draw, steps
from sandherd.client.cli.showing import in_time
from sandherd.client.cli.telling import LONGEST_DIFF, diff, gap, tell
from sandherd.client.sequencing import Missing
from sandherd.client.terminal_text import visible as safe
from sandherd.client.terminal_text import visible_output as safe_terminal
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests import HeartbeatSummary, StoredEvent, Trajectory

GOLDEN = Path(sandherd.contracts.__file__).parent / "golden" / "v1" / "events"
PLAIN = Paint(on=False)


def golden() -> Iterator[StoredEvent]:
    for number, path in enumerate(sorted(GOLDEN.rglob("*.json")), 1):
        yield StoredEvent(stream_sequence=number, envelope=json.loads(path.read_text()))


def test_every_type_of_event_can_be_told() -> None:
    """Each golden example is a line with its time and type, and no control character."""
    told = {}
    for stored in golden():
        event = heard.kept(stored)
        lines = list(tell(event, PLAIN))
        told[event.type] = lines[0]
        assert event.type in lines[0]
        assert all(line.isprintable() for line in lines)
    assert told.keys() == EVENTS.keys()


def test_every_type_of_event_can_be_drawn() -> None:
    """A trajectory of every event there is makes a picture, calls joined with their results."""
    stored = list(golden())
    page = Trajectory(
        sandbox_id="sbx-one",
        events=stored,
        heartbeat_summary=HeartbeatSummary(count=0),
        total_events=len(stored),
        trajectory_events=len(stored),
    )
    assert len(list(draw([page], PLAIN))) > len(EVENTS) // 2
    assert steps([]) == []


def test_a_trajectory_does_not_go_back_in_time() -> None:
    """Its rows are in the order of their times, and those of one moment in the order of the stream."""
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
    assert [event.stream_sequence for event in in_time(page).events] == [3, 1, 2, 0]


def test_a_newer_event_is_told_with_its_fields() -> None:
    """A type that this version doesn't know is shown with what it says."""
    stored = next(golden())
    envelope = stored.envelope | {"type": "agent.danced", "data": {"style": "tango", "turn": 3}}
    event = heard.kept(StoredEvent(stream_sequence=1, envelope=envelope))
    assert "style=tango" in next(tell(event, PLAIN))


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


def test_a_long_diff_says_how_long_it_is() -> None:
    """A diff is cut at a screenful or so, and the rest is counted."""
    lines = list(diff("+x\n" * (LONGEST_DIFF + 5), PLAIN))
    assert len(lines) == LONGEST_DIFF + 1
    assert "5 more lines" in lines[-1]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (Missing("/s", 3, 3), "event 3 of /s"),
        (Missing("/s", 3, 5), "events 3 to 5 of /s"),
        (Missing("/s", 4, None), "after number 3"),
    ],
)
def test_a_gap_is_said_in_words(missing: Missing, words: str) -> None:
    """What could not be shown is named exactly."""
    assert words in gap(missing)
