"""The replay of the rules over stored events, and its quality by labels."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.replay.report import replay
from monitor.rule_set import ALL, RuleSet
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.names import derived_uuid
from sandherd.contracts.replay import ReplayReport
from tests.recordings import quality
from tests.unit.monitor.rule_sets import with_ladder, with_thresholds

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Lines:
    """Events of sandboxes as lines, five seconds apart."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def add(self, event_type: str, sandbox: str = "sbx-1", **fields: Any) -> None:
        number = len(self.lines) + 1
        event = wrap(
            EVENTS[event_type](**fields),
            event_type,
            id=derived_uuid(T0, sandbox, number),
            source=f"/sandherd/sandbox/{sandbox}",
            sequence=number,
            project="p1",
            subject=sandbox,
            time=T0 + timedelta(seconds=5 * number),
            sandboxid=sandbox,
            taskid="task-1",
        )
        self.lines.append(event.model_dump_json(exclude_none=True).encode())

    def started(self, sandbox: str = "sbx-1") -> None:
        self.add("agent.started", sandbox, timestamp=T0, sdk="claude", task="t", task_description_length=1)

    def call(self, command: str, sandbox: str = "sbx-1", result: str = "same") -> None:
        id = f"call-{len(self.lines)}"
        self.add("agent.tool_use", sandbox, tool="Bash", tool_use_id=id, input={"command": command}, turn=1)
        self.add("agent.tool_result", sandbox, tool_use_id=id, result=result, turn=1)


@pytest.fixture
def looping() -> Lines:
    lines = Lines()
    lines.started()
    for _ in range(6):
        lines.call("ls")
    return lines


def test_replay_reports_what_the_watch_would_find_and_do(looping: Lines) -> None:
    """One finding of the loop with its evidence, one nudge."""
    report = replay(looping.lines, ALL)
    assert [(one.rule, one.step, one.count, one.event) for one in report.findings] == [("loop", "nudge", 4, 9)]
    assert [(one.rule, one.step, one.event) for one in report.interventions] == [("loop", "nudge", 9)]
    ids = {json.loads(line)["id"] for line in looping.lines}
    assert set(report.findings[0].evidence) <= ids
    assert (report.events, report.unreadable, report.sandboxes) == (13, 0, 1)


def test_other_thresholds_and_steps_decide_otherwise(looping: Lines) -> None:
    """A replay answers what a changed rule would have done."""
    late = replay(looping.lines, with_thresholds("loop", repeats=6))
    assert [one.event for one in late.findings] == [13]
    assert replay(looping.lines, with_thresholds("loop", repeats=7)).findings == []
    assert replay(looping.lines, with_ladder("observe")).interventions == []


def test_same_events_give_the_same_decisions(looping: Lines) -> None:
    """Also if lines of other sandboxes are between them, and lines that are no events."""
    alone = replay(looping.lines, ALL)
    other = Lines()
    other.started("sbx-2")
    for number in range(12):
        other.call(f"ls {number}", "sbx-2", result=str(number))
    mixed = [line for pair in zip(looping.lines, other.lines, strict=False) for line in (*pair, b"no event\n", b"\n")]
    report = replay(mixed, ALL)
    assert report.unreadable == len(looping.lines)
    assert [one.model_copy(update={"event": 0}) for one in report.findings] == [
        one.model_copy(update={"event": 0}) for one in alone.findings
    ]
    assert replay(looping.lines, ALL) == alone


def test_recorded_decisions_are_listed_beside(looping: Lines) -> None:
    """What the recorded monitor published is not folded in: it decides nothing of the replay."""
    looping.add("monitor.guardian_analysed", rule="loop", needs_steering=True, summary="s")
    about: dict[str, Any] = {"correlation_id": "c1", "message_id": "msg-1", "message": "stop"}
    looping.add("monitor.intervention_decided", rule="loop", step="nudge", **about)
    looping.add("monitor.intervention_outcome", correlation_id="c1", outcome="ignored")
    report = replay(looping.lines, ALL)
    assert [one.rule for one in report.recorded_findings] == ["loop"]
    assert [(one.step, one.outcome) for one in report.recorded_interventions] == [("nudge", "ignored")]
    assert len(report.interventions) == 1


def test_rule_that_a_user_muted_is_muted_in_the_replay() -> None:
    """A user's request is no decision of the recorded monitor: without it the replay would decide otherwise."""
    lines = Lines()
    lines.started()
    lines.add("monitor.rule_muted", rule="loop", muted_by="user-1")
    for _ in range(6):
        lines.call("ls")
    assert replay(lines.lines, ALL).interventions == []
    lines.add("monitor.rule_unmuted", rule="loop")
    lines.call("ls")
    assert [(one.rule, one.event) for one in replay(lines.lines, ALL).interventions] == [("loop", 15)]


def labelled(report_of: Lines, **label: Any) -> ReplayReport:
    document = {"sessions": {"one": {"sandbox": "sbx-1", **label}}}
    return replay(report_of.lines, ALL, json.dumps(document).encode())


def test_quality_counts_found_missed_and_false(looping: Lines) -> None:
    """Recall by labelled sessions, false alarms by healthy ones; what may be found is neither."""
    hit = labelled(looping, expect=["loop"], from_sequence=2).quality
    assert hit is not None
    assert (hit.recall, hit.healthy, hit.false_alarms_per_healthy) == (1.0, 0, None)
    miss = labelled(looping, expect=["cycle"]).quality
    assert miss is not None
    assert miss.recall == 0
    assert [rule.missed for rule in miss.rules if rule.rule == "cycle"] == [["one"]]
    false = labelled(looping, expect=[]).quality
    assert false is not None
    assert (false.false_alarms, false.alarmed) == (1, ["one: loop"])
    fine = labelled(looping, expect=[], may=["loop"]).quality
    assert fine is not None
    assert fine.false_alarms == 0


@pytest.mark.parametrize(
    ("label", "expected_text"),
    [
        ({"sandbox": "sbx-9"}, "sessions.one: no event of its sandbox sbx-9 is replayed"),
        ({"sandbox": "sbx-1", "expect": ["lop"]}, "sessions.one: there is no rule lop; the rules are"),
        ({"expect": []}, "sessions.one.sandbox"),
    ],
)
def test_labels_that_fit_nothing_are_errors(looping: Lines, label: dict[str, Any], expected_text: str) -> None:
    """Unknown sessions and rules are named, with the valid ones."""
    with pytest.raises(ContractError, match=expected_text):
        replay(looping.lines, ALL, json.dumps({"sessions": {"one": label}}).encode())


def test_rule_that_fails_is_reported_and_affects_nothing_else(looping: Lines) -> None:
    """As in the watch."""

    class Broken(type(ALL.by_name["cycle"])):  # type: ignore[misc]  # its class, whatever it is
        def fold(self, part: Any, observation: Any, facts: Any) -> Any:
            raise ZeroDivisionError

    rules = RuleSet([rule if rule.name != "cycle" else Broken() for rule in ALL.rules])
    report = replay(looping.lines, rules)
    assert [one.rule for one in report.findings] == ["loop"]
    assert list(report.failed_rules) == ["sbx-1"]
    assert report.failed_rules["sbx-1"][0].startswith("cycle: fold: ZeroDivisionError")


def test_rules_find_what_the_recordings_have_and_nothing_in_healthy_ones() -> None:
    """All recorded sessions: recall at least 0.95, and no false alarm; docs/detection.md shows these figures."""
    found = quality.measured()
    assert found.alarmed == []
    assert found.recall is not None
    assert found.recall >= 0.95
    assert quality.page_with(quality.table(), quality.PAGE.read_text()) == quality.PAGE.read_text()
