"""Sandboxes that are paused, extended, without a task, entered from outside, or of an attempt that is over."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import pytest

from monitor.fold import fold
from monitor.guardian import outcome, steer
from monitor.reading import read
from monitor.recorded import Recorded, recorded
from monitor.rules import Finding, Limits, Rule, judge, stands
from monitor.state import Seen, Watched
from sandherd.contracts.derived_ids import DerivedIds
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.lifecycle import TaskRetryScheduled
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from sandherd.contracts.subjects import event_subject

Story = Any
After = Callable[[float], datetime]
IDS = DerivedIds(b"of the monitors")


def told(events: Iterable[Seen], state: Watched | None = None) -> Watched:
    found = reduce(fold, events, state)
    assert found is not None
    return found


def found(state: Watched, now: datetime, limits: Limits) -> str | None:
    finding = judge(state, now, limits, now - timedelta(days=9))
    return None if finding is None else finding.rule.value


# --- paused


@pytest.mark.parametrize(
    "before",
    [
        [("agent.message", {})],
        [("agent.tool_use", {})],
        [("agent.started", {}), ("agent.completed", {})],
        [("sandbox.requested", {})],
    ],
    ids=["working", "in a call", "finished", "silent"],
)
def test_a_paused_sandbox_is_neither_dead_nor_idle_nor_stuck_nor_finished(
    story: Story, limits: Limits, after: After, before: Any
) -> None:
    """It can do nothing and say nothing, however long that is."""
    events = [story.seen(kind, **fields) for kind, fields in before]
    assert found(told([*events, story.seen("sandbox.paused", 10)]), after(40_000), limits) is None


@pytest.mark.parametrize(
    ("before", "limit", "rule"),
    [
        ("agent.message", 90, "dead"),
        ("agent.message", 600, "idle"),
        ("agent.tool_use", 900, "stuck"),
        ("agent.completed", 300, "finished"),
    ],
)
def test_every_deadline_begins_anew_when_it_goes_on(
    story: Story, limits: Limits, after: After, before: str, limit: int, rule: str
) -> None:
    """A second before its limit nothing is found, at its limit it is, both counted from the resumption."""
    events = [story.seen(before), story.seen("sandbox.paused", 10), story.seen("sandbox.resumed", 5000)]
    if rule != "dead":
        events.append(story.seen("agent.heartbeat", 5000 + limit - 1))
    assert found(told(events), after(5000 + limit - 1), limits) is None
    assert found(told(events), after(5000 + limit), limits) == rule


def test_nobody_is_nudged_who_is_frozen(story: Story, limits: Limits, after: After) -> None:
    """A loop before a pause is spoken of when it goes on."""
    looped = told([*story.loop(4), story.seen("sandbox.paused", 1)])
    assert steer(looped, after(2), limits, IDS) is None
    assert steer(told([story.seen("sandbox.resumed", 3)], looped), after(4), limits, IDS) is not None


# --- its time to live


@pytest.mark.parametrize(("age", "rule"), [(1000, None), (1059, None), (1060, "too_old")])
def test_whose_time_the_spawner_has_named_is_the_spawners_to_end(
    story: Story, limits: Limits, after: After, age: int, rule: Any
) -> None:
    """At its time nothing is found; only one that lives on for as long as the spawner is given to act."""
    state = told([story.seen("sandbox.requested", expires_at=after(1000)), story.seen("agent.message", age)])
    assert found(state, after(age), limits) == rule


def test_one_that_was_extended_may_grow_older_than_others(story: Story, limits: Limits, after: After) -> None:
    """Neither the greatest age nor its first time counts then, also while it is paused."""
    state = told(
        [
            story.seen("sandbox.requested", expires_at=after(1000)),
            story.seen("sandbox.extended", 900, runtime="process", expires_at=after(90_000)),
            story.seen("sandbox.paused", 950),
        ]
    )
    assert found(state, after(90_059), limits) is None
    assert found(state, after(90_060), limits) == "too_old"


# --- commands from outside


def test_a_command_that_somebody_runs_is_activity_and_never_stuck(story: Story, limits: Limits, after: After) -> None:
    """It has a limit of its own, which the worker keeps; when it has ended, the idle clock runs from its end."""
    events = [story.seen("agent.message"), story.seen("agent.exec_started", 500), story.seen("agent.heartbeat", 9000)]
    assert found(told(events), after(9000), limits) is None
    events += [story.seen("agent.exec_completed", 9010), story.seen("agent.heartbeat", 9600)]
    assert found(told(events), after(9609), limits) is None
    assert found(told(events), after(9610), limits) == "idle"


def test_a_finished_one_stays_while_a_command_runs_in_it(story: Story, limits: Limits, after: After) -> None:
    """Somebody looks at what the agent has left; an agent's own call that never ended keeps nothing."""
    events = [story.seen("agent.tool_use"), story.seen("agent.completed", 1)]
    running = [story.seen("agent.exec_started", 200), story.seen("agent.heartbeat", 3000)]
    ended = [story.seen("agent.exec_completed", 3010), story.seen("agent.heartbeat", 3300)]
    assert found(told([*events, *running]), after(3000), limits) is None
    assert found(told([*events, *running, *ended]), after(3309), limits) is None
    assert found(told([*events, *running, *ended]), after(3310), limits) == "finished"


def test_files_that_are_put_in_are_activity(story: Story, limits: Limits, after: After) -> None:
    """Whoever uploads is at work there."""
    events = [story.seen("agent.message"), story.seen("agent.file_uploaded", 599), story.seen("agent.heartbeat", 1198)]
    assert found(told(events), after(1198), limits) is None


# --- without a task


def test_a_sandbox_without_a_task_is_there_for_whoever_asked(story: Story, limits: Limits, after: After) -> None:
    """Neither idle nor finished ends it; silence does, and its time to live."""
    events = [
        story.seen("sandbox.requested", task=None, expires_at=after(100_000)),
        story.seen("agent.started", 1, task=None),
        story.seen("agent.heartbeat", 90_000, task=None),
    ]
    assert found(told(events), after(90_089), limits) is None
    assert found(told(events), after(90_090), limits) == "dead"
    events.append(story.seen("agent.heartbeat", 100_060, task=None))
    assert found(told(events), after(100_060), limits) == "too_old"


# --- attempts


@pytest.mark.parametrize("over", ["task.retry_scheduled", "task.failed", "task.cancelled"])
def test_an_attempt_that_is_over_is_spoken_to_no_more(story: Story, limits: Limits, after: After, over: str) -> None:
    """The spawner ends its sandbox: it is neither idle nor stuck, nor nudged; if it stays, it is found finished."""
    state = told([*story.loop(4), story.seen("agent.tool_use", tool_use_id="open"), story.seen(over, 10)])
    assert steer(state, after(11), limits, IDS) is None
    assert outcome(state, limits) is None
    lives = told([story.seen("agent.heartbeat", 309)], state)
    assert found(lives, after(309), limits) is None
    assert found(lives, after(310), limits) == "finished"


def test_a_new_attempt_begins_with_a_clean_slate(story: Story, limits: Limits, after: After) -> None:
    """The loop, the calls and the silence of the last attempt's sandbox are not those of the next one's."""
    old = told(
        [*story.loop(4), story.seen("agent.tool_use", tool_use_id="open"), story.seen("task.retry_scheduled", 5)]
    )
    new = told([story.seen("sandbox.requested", 2000, "sbx-2")])
    assert (old.taskid, new.taskid) == ("task-1", "task-1")
    assert (new.streak, dict(new.in_flight), new.finished_at, new.steered) == (None, {}, None, 0)
    assert found(new, after(2089), limits) is None


def test_a_retry_is_read_as_said_of_the_sandbox_that_failed(after: After) -> None:
    """Its subject names the task, what it says names the sandbox; one without a sandbox is about none."""
    for sandbox in ("sbx-1", None):
        data = TaskRetryScheduled(attempt=1, not_before=after(9), error="lost", sandbox=sandbox)
        event = wrap(
            data,
            data.type,
            source="/sandherd/spawner/task-1/1",
            sequence=3,
            project="p1",
            subject="task-1",
            time=after(0),
        )
        seen = read(event_subject("p1", "task-1", data.type), event.to_json(), 7, after(0))
        assert (seen.entity if seen else None) == sandbox


# --- the spawner's record


@pytest.mark.parametrize("state", list(SandboxState))
@pytest.mark.parametrize("rule", list(Rule))
def test_the_record_has_the_last_word(rule: Rule, state: SandboxState, after: After) -> None:
    """What is ending is left alone; a pause that is not heard of yet keeps all rules but the age."""
    finding = Finding(rule, after(0), 1)
    kept = state in SANDBOX_ENDING or (state is SandboxState.PAUSED and rule is not Rule.TOO_OLD)
    assert stands(finding, Recorded(state), after(5)) != kept


@pytest.mark.parametrize(("rule", "holds"), [("dead", True), ("too_old", True), ("finished", False), ("idle", False)])
def test_a_record_without_a_task_keeps_it_from_being_idle(rule: str, holds: bool, after: After) -> None:
    """Also where its beginning was never read."""
    assert stands(Finding(Rule(rule), after(0), 1), Recorded(SandboxState.RUNNING, alone=True), after(5)) == holds


def test_more_time_that_is_not_heard_of_yet_counts(after: After) -> None:
    """The record is extended before the event is read."""
    running = Recorded(SandboxState.RUNNING, expires_at=after(100))
    assert not stands(Finding(Rule.TOO_OLD, after(0), 1), running, after(99))
    assert stands(Finding(Rule.TOO_OLD, after(0), 1), running, after(100))


def test_a_record_is_read_without_what_is_at_its_default(after: After) -> None:
    """The spawner writes neither the first state nor the lack of a task."""
    assert recorded({}) == Recorded(SandboxState.REQUESTED, alone=True)
    whole = {"state": "paused", "task": "task-1", "expires_at": "2026-11-20T12:00:09Z", "sandbox": "sbx-1"}
    assert recorded(whole) == Recorded(SandboxState.PAUSED, expires_at=after(9))
    with pytest.raises(ValueError, match="melted"):
        recorded({"state": "melted"})
