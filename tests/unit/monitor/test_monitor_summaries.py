"""Summaries of sandboxes: what they have used, what they have edited, and when they are written."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import file_edits, sandbox_summary, sandbox_usage
from monitor.event_decoder import read
from monitor.facts import ObservedEvent
from monitor.herd import Herd
from monitor.rule_set import ALL
from monitor.snapshot import pack, unpack
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.agent import AgentStarted, AgentTurnCompleted
from sandherd.contracts.events.call_facts import ToolOutcome
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.records import MAX_EDITS, MAX_RANGES, SandboxSummary
from sandherd.contracts.subjects import event_subject

Story = Any
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = ("p1", "sbx-1")


def herd_after(*events: ObservedEvent) -> Herd:
    """The herd after these events in this order."""
    herd = Herd()
    for number, event in enumerate(events, 1):
        herd.fold(replace(event, number=number))
        herd.position = number
    return herd


def summarised(*events: ObservedEvent) -> SandboxSummary:
    herd = herd_after(*events)
    return sandbox_summary.summary_of(herd.live.get(KEY) or herd.unwritten[KEY])


def spent(*events: ObservedEvent) -> Any:
    return summarised(*events).spending


def test_usage_is_the_sum_of_its_reports(story: Story) -> None:
    """Tokens of each kind and costs are added; a repeated event adds nothing, also under a new place in the stream."""
    reports = [
        replace(story.seen("agent.usage", input_tokens=10, output_tokens=2, cost_micro_usd=700), sequence=3),
        replace(story.seen("agent.usage", cache_read_tokens=5, cache_write_tokens=1, cost_micro_usd=1), sequence=7),
    ]
    found = spent(story.seen("agent.started"), *reports, *reports)
    assert (found.input_tokens, found.output_tokens, found.cache_read_tokens, found.cache_write_tokens) == (10, 2, 5, 1)
    assert (found.cost_micro_usd, found.tokens, found.metered, found.priced) == (701, 18, True, True)


def test_totals_of_an_attempt_replace_smaller_sums_only(story: Story) -> None:
    """A harness that reports only at its end is metered; one whose totals began anew decreases nothing."""
    used = story.seen("agent.usage", input_tokens=10, cost_micro_usd=700)
    ended = story.seen("agent.completed", input_tokens=4, output_tokens=9, cost_micro_usd=5, turns=3)
    found = summarised(story.seen("agent.started"), used, ended)
    assert (found.spending.input_tokens, found.spending.output_tokens, found.spending.cost_micro_usd) == (10, 9, 700)
    assert found.turns == 3


def test_implausible_usage_is_counted_and_not_added(story: Story) -> None:
    """One report must not use up the budget of a project for a month."""
    wrong = story.seen("agent.usage", input_tokens=MAX_WHOLE)
    dear = story.seen("agent.usage", cost_micro_usd=sandbox_usage.MAX_COST + 1)
    total = story.seen("agent.completed", input_tokens=MAX_WHOLE, turns=3)
    found = summarised(story.seen("agent.started"), wrong, dear, total)
    assert (found.spending.implausible, found.spending.tokens, found.spending.metered) == (3, 0, False)
    assert found.turns == 3


def test_implausible_number_of_turns_is_not_counted(story: Story) -> None:
    """A total of turns that no attempt can have does not use up the project's budget of turns."""
    total = story.seen("agent.completed", input_tokens=5, turns=sandbox_usage.MAX_TURNS + 1)
    found = summarised(story.seen("agent.started"), story.seen("agent.turn_completed"), total)
    assert (found.turns, found.spending.implausible) == (1, 1)


def test_turn_that_is_published_again_is_counted_once(story: Story) -> None:
    """A worker that got no acknowledgement publishes the event again, with the same sequence number."""
    lines = [
        wrap(
            AgentTurnCompleted(turn=number),
            AgentTurnCompleted.type,
            source="/sandherd/sandbox/sbx-1",
            sequence=sequence,
            project="p1",
            subject="sbx-1",
            time=T0,
            sandboxid="sbx-1",
        )
        for number, sequence in [(1, 5), (1, 5), (2, 9), (1, 5)]
    ]
    subject = event_subject("p1", "sbx-1", AgentTurnCompleted.type)
    turns = [read(subject, line.model_dump_json(exclude_none=True).encode(), 1, T0) for line in lines]
    assert summarised(story.seen("agent.started"), *[turn for turn in turns if turn is not None]).turns == 2


def test_missing_usage_is_unmetered(story: Story) -> None:
    """Turns without a report are counted; a harness that reports no costs is metered, and not priced."""
    started = story.seen("agent.started")
    none = spent(started, story.seen("agent.turn_completed"), story.seen("agent.completed"))
    assert (none.metered, none.priced, none.unmetered_turns) == (False, False, 1)
    partly = spent(
        started,
        story.seen("agent.usage", input_tokens=1),
        story.seen("agent.turn_completed"),
        story.seen("agent.turn_completed"),
    )
    assert (partly.metered, partly.priced, partly.unmetered_turns) == (True, False, 1)


def test_wall_time_excludes_pauses_and_ends_with_the_agent(story: Story) -> None:
    """It counts from the agent's start until the last event of its worker."""
    started = story.seen("agent.started", 10)
    paused, resumed = story.seen("sandbox.paused", 20), story.seen("sandbox.resumed", 50)
    assert spent(started, paused).wall_seconds == 10
    assert spent(started, paused, resumed, story.seen("agent.message", 60)).wall_seconds == 20
    late = story.seen("agent.heartbeat", 99)
    assert spent(started, story.seen("agent.completed", 30), late).wall_seconds == 20


def test_calls_and_errors_are_counted_once(story: Story) -> None:
    """A call that is reported twice ends once."""
    failed = story.seen("agent.tool_result", tool_use_id="2", is_error=True)
    events = [*story.call("1"), story.seen("agent.tool_use", tool_use_id="2"), failed]
    again = story.seen("agent.tool_completed", tool_use_id="2", outcome="failed")
    found = summarised(story.seen("agent.started"), *events, again, story.seen("agent.error", error="e"))
    assert (found.tool_calls, found.errors) == (2, 2)


def test_errors_are_the_events_that_count_as_errors_and_failed_calls(story: Story) -> None:
    """A failed attempt is an error and reports totals, too. A call that was denied has not failed."""
    events = [
        story.seen("agent.error", error="e"),
        story.seen("agent.stream_error", error="e"),
        story.seen("agent.iteration_failed", iteration_num=1, error="e"),
        story.seen("agent.failed", error="e", error_type="exit_status", turns=3),
    ]
    found = summarised(story.seen("agent.started"), *events)
    assert (found.errors, found.turns) == (len(events), 3)
    assert {event.type for event in events} == {name for name, model in EVENTS.items() if model.counts_as_error}
    outcomes: list[tuple[ToolOutcome | None, bool]] = [("timed_out", False), ("denied", True), (None, True)]
    for number, (outcome, failed) in enumerate(outcomes):
        call = str(number)
        result = story.seen("agent.tool_result", tool_use_id=call, outcome=outcome, is_error=failed)
        started = story.seen("agent.started"), story.seen("agent.tool_use", tool_use_id=call)
        assert summarised(*started, result).errors == (outcome != "denied")


def test_state_is_that_of_the_last_events(story: Story) -> None:
    """The states are running, waiting for a message or an approval, paused, finished, and ended."""
    story_of: list[tuple[str, str, dict[str, Any]]] = [
        ("agent.started", "running", {}),
        ("agent.waiting", "waiting", {}),
        ("agent.message", "running", {}),
        ("agent.approval_requested", "waiting", {}),
        ("approval.granted", "running", {}),
        ("sandbox.paused", "paused", {}),
        ("sandbox.resumed", "running", {}),
        ("agent.completed", "finished", {}),
        ("sandbox.terminated", "ended", {}),
    ]
    seen = [story.seen(kind, at, **fields) for at, (kind, _, fields) in enumerate(story_of)]
    assert [summarised(*seen[: place + 1]).state for place in range(len(seen))] == [state for _, state, _ in story_of]


def test_summary_has_the_assignment(story: Story) -> None:
    """It has the data of `agent.started` about the task, and at most the maximum of the title."""
    about = {"attempt": 2, "repository": "r", "base": "main", "branch": "b", "task_kind": "docs"}
    started = story.seen("agent.started", **about)
    assert isinstance(started.data, AgentStarted)
    found = summarised(replace(started, data=started.data.model_copy(update={"task": "t" * 600})))
    assert (found.attempt, found.repository, found.base, found.branch, found.task_kind) == (2, "r", "main", "b", "docs")
    assert (found.title, found.harness, found.task) == ("t" * 500, "command", "task-1")


# --- edits -------------------------------------------------------------------------------------------------------

DIFF = """--- a/f
+++ b/f
@@ -1,6 +1,7 @@
 one
-two
+TWO
+more
 three
@@ -20,4 +21,3 @@
 a
-b
 c
\\ No newline at end of file
@@ -40 +40 @@
-x
+y"""


def test_ranges_are_the_changed_lines_without_context() -> None:
    """They are lines of the new text. Where lines were only removed, the range is the line before."""
    assert list(file_edits.ranges_of(DIFF)) == [(2, 3), (21, 21), (40, 40)]
    assert list(file_edits.ranges_of("")) == list(file_edits.ranges_of("no diff, it is binary\n+x")) == []
    assert list(file_edits.ranges_of("@@ -0,0 +1,2 @@\n+a\u2028b\n+c")) == [(1, 2)]
    assert list(file_edits.ranges_of("@@ -1,2 +0,0 @@\n-a\n-b")) == [(1, 1)]


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 50)), max_size=60))
def test_merged_ranges_cover_all_and_are_few(found: list[tuple[int, int]]) -> None:
    """Every changed line is in a range, ranges are in order and apart, and at most the maximum."""
    ranges = [(first, first + length) for first, length in found]
    merged = file_edits.merge_ranges(ranges)
    assert len(merged) <= MAX_RANGES
    assert all(any(low <= first and last <= high for low, high in merged) for first, last in ranges)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(merged))


def edited(story: Story, path: str, at: float = 0, **fields: Any) -> ObservedEvent:
    seen: ObservedEvent = story.seen("agent.file_edited", at, file_path=path, **{"change_type": "modified"} | fields)
    return seen


def test_edits_of_a_file_are_one_with_its_count(story: Story) -> None:
    """The edit has the last content and time, and all ranges. A renamed file has the edits of its former name."""
    sha = "ab" * 32
    first = edited(story, "a", 1, full_diff="@@ -1 +1 @@\n-x\n+y", content_sha256="00" * 32)
    other = edited(story, "b", 2)
    moved = edited(
        story,
        "c",
        3,
        previous_path="a",
        content_sha256=sha,
        diff_preview="@@ -9 +9,2 @@\n-x\n+y\n+z",
        change_type="renamed",
    )
    found = summarised(story.seen("agent.started"), first, other, moved).edits
    assert [(one.path, one.count) for one in found] == [("b", 1), ("c", 2)]
    assert found[1].ranges == ((1, 1), (9, 10))
    assert (found[1].content_sha256, found[1].at, found[0].content_sha256) == (sha, T0 + timedelta(seconds=3), None)


def test_edits_have_a_maximum_size(story: Story) -> None:
    """The last edits are stored; a path that is too long is left out."""
    events = [edited(story, f"{number:04}", content_sha256="00" * 32) for number in range(MAX_EDITS * 2)]
    packed = reduce(file_edits.after_edit, events, b"")
    assert len(packed) <= file_edits.MAX_BYTES
    assert [one.path for one in file_edits.unpack(packed)][-1] == "0399"
    few = reduce(file_edits.after_edit, [edited(story, f"{number:03}") for number in range(MAX_EDITS + 5)], b"")
    assert len(list(file_edits.unpack(few))) == MAX_EDITS
    assert file_edits.after_edit(few, edited(story, "p" * (file_edits.MAX_PATH + 1))) == few


# --- writing -----------------------------------------------------------------------------------------------------


def test_summary_is_due_after_a_change_and_not_too_often(story: Story) -> None:
    """A heartbeat is not a change."""
    herd = herd_after(story.seen("agent.started"))
    assert [state.key for state in sandbox_summary.due_states(herd, {}, 0, 10)] == [KEY]
    assert sandbox_summary.due_states(herd, {KEY: 0.0}, sandbox_summary.WRITE_EVERY - 0.1, 10) == []
    assert sandbox_summary.due_states(herd, {KEY: 0.0}, sandbox_summary.WRITE_EVERY, 10) != []
    herd.changed.clear()
    herd.fold(replace(story.seen("agent.heartbeat"), number=9))
    assert sandbox_summary.due_states(herd, {}, 0, 10) == []


@pytest.mark.parametrize("how", ["event", "record"])
def test_last_summary_of_an_ended_sandbox_is_due_until_it_is_written(story: Story, how: str) -> None:
    """This holds after a restart from a snapshot, too: its usage must not be lost. The summary has no edits."""
    started = [story.seen("agent.started"), story.seen("agent.usage", input_tokens=4), edited(story, "a")]
    herd = herd_after(*started)
    if how == "event":
        herd.fold(replace(story.seen("sandbox.terminated"), number=9))
    else:
        herd.remove(KEY)
    herd.position = story.number
    restored = unpack(*pack(herd, "1-a"), ALL)
    for one in (herd, restored):
        (state,) = sandbox_summary.due_states(one, {KEY: 0.0}, 0, 10)
        found = sandbox_summary.summary_of(state)
        assert (found.state, found.spending.input_tokens, found.edits) == ("ended", 4, ())


def test_snapshot_has_what_the_summary_needs(story: Story, after: Callable[[float], datetime]) -> None:
    """The restored herd has the same summaries, and all of them are due."""
    events = [
        story.seen("agent.started", repository="r"),
        story.seen("agent.usage", input_tokens=1),
        story.seen("agent.turn_completed"),
        edited(story, "ä", 5, full_diff="@@ -1 +1 @@\n-x\n+y", content_sha256="01" * 32),
        story.seen("sandbox.paused", 7),
    ]
    herd = herd_after(*events)
    restored = unpack(*pack(herd, "1-a"), ALL)
    assert restored.live == herd.live
    assert sandbox_summary.summary_of(restored.live[KEY]) == sandbox_summary.summary_of(herd.live[KEY])
    assert restored.changed == {KEY}
