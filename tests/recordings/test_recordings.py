"""The recordings and their labels are as README.md states, which replays and published figures rely on."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, get_args

from sandherd.contracts.decoder import read_event
from tests.recordings.clock import BEAT, Clock, retime
from tests.recordings.scenario import SCENARIOS, Rule, described
from tests.recordings.scenarios import load
from tests.recordings.sessions import SESSIONS, labels, names, plain_text

RULES: Final = frozenset(get_args(Rule))
FIELDS: Final = {"harness", "author", "steps", "events", "sandbox", "expect", "may", "note"}
MAX_BYTES: Final = 6_000_000
"""The maximum of all files together."""
MAX_PLAIN_BYTES: Final = 150_000
"""The maximum of an average session, uncompressed."""
FOREIGN: Final = re.compile(
    rb"/root/|/Users/|/home/(?!agent\b)|(?<!/home/agent)/work/|/tmp/w/|sk-ant|BEGIN [A-Z ]*KEY|eyJ[A-Za-z0-9_-]{20}"
)
"""Paths of a recording machine, and secrets."""

_TYPE: Final = re.compile(rb'"type":"([a-z_.]+)"')


def test_recordings_are_valid_events_in_order() -> None:
    """Each line is an event by the contracts; a session has one source, no gap, and a heartbeat each 30 s."""
    ids: list[str] = []
    for name, label in labels().items():
        lines = (plain_text(name) or b"").splitlines()
        events = [read_event(_subject(label["sandbox"], line), line) for line in lines]
        assert len(events) == label["events"], name
        assert {event.source for event in events} == {f"/sandherd/sandbox/{label['sandbox']}"}, name
        assert [event.sequence for event in events] == list(range(1, len(events) + 1)), name
        pauses = [after.time - before.time for before, after in pairwise(events)]
        assert all(timedelta(0) <= pause <= BEAT for pause in pauses), name
        ids += [str(event.id) for event in events]
    assert len(ids) == len(set(ids))


def _subject(sandbox: str, line: bytes) -> str:
    kind = _TYPE.search(line)
    assert kind is not None
    return f"sandherd.v1.event.default.{sandbox}.{kind[1].decode()}"


def test_every_recording_has_a_label() -> None:
    """Labels name the recordings, known rules, and an event of the session as its first one at fault."""
    assert set(labels()) == set(names())
    for name, label in labels().items():
        assert label.keys() >= FIELDS, name
        assert {*label["expect"], label.get("imitates", "loop")} <= RULES, name
        assert set(label["may"]) <= RULES - set(label["expect"]), name
        assert ("from_sequence" in label) == bool(label["expect"]), name
        assert 1 <= label.get("from_sequence", 1) <= label["events"], name


def test_labels_state_what_scenarios_do() -> None:
    """After a change of a scenario it is recorded again, or `record --labels` updates its label; each is recorded."""
    load()
    assert SCENARIOS.keys() <= labels().keys()
    for name, make in SCENARIOS.items():
        assert labels()[name] | described(make()) == labels()[name], name


def test_each_rule_has_two_true_and_two_false_cases() -> None:
    """There are at least 80 sessions, and for each rule two at fault and two that only resemble one."""
    found = labels().values()
    true = Counter(rule for label in found for rule in label["expect"])
    false = Counter(label["imitates"] for label in found if "imitates" in label)
    assert len(found) >= 80
    assert {rule for rule in RULES if true[rule] < 2 or false[rule] < 2} == set()
    assert {label["harness"] for label in found} == {"claude", "openhands", "acp", "command"}
    assert sum(label["steps"] >= 50 for label in found if not label["expect"]) >= 10


def test_recordings_are_small_and_name_no_machine() -> None:
    """The files stay small; they have no path of the machine that recorded them, and no secret."""
    assert sum(path.stat().st_size for path in SESSIONS.glob("*.jsonl*")) <= MAX_BYTES
    texts = {name: plain_text(name) or b"" for name in names()}
    assert sum(map(len, texts.values())) / len(texts) <= MAX_PLAIN_BYTES
    assert {name: found.group() for name, text in texts.items() if (found := FOREIGN.search(text))} == {}


def _event(second: int, type: str, **data: Any) -> dict[str, Any]:
    time = datetime(2026, 1, 1, 12, 0, second, tzinfo=UTC).isoformat()
    return {"id": str(second), "type": type, "time": time, "sequence": second + 1, "data": data}


def test_clock_shifts_times_and_durations() -> None:
    """A pause shifts later events and lengthens durations that contain it; heartbeats come each 30 s."""
    start = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    clock = Clock.read(f"{start + 3.5} 60 fault\n{start + 1.5} 10 step\n")
    session = [
        _event(0, "agent.heartbeat", status="running", timestamp="2026-01-01T12:00:00Z"),
        _event(2, "agent.tool_use"),
        _event(4, "agent.tool_completed", duration_ms=2000.0),
        _event(5, "agent.completed", duration_seconds=5.0),
    ]
    events = retime(session, clock)
    assert [event["sequence"] for event in events] == [1, 2, 3, 4, 5, 6]
    times = [datetime.fromisoformat(event["time"]).timestamp() - start for event in events]
    assert times == [0, 12, 30, 60, 74, 75]
    assert all(before <= after for before, after in pairwise(times))
    assert (events[4]["data"]["duration_ms"], events[5]["data"]["duration_seconds"]) == (62_000, 75)
    assert (clock.steps, clock.faults) == ([start + 1.5, start + 3.5], [start + 3.5])
