"""Sandboxes that are paused, extended, without a task, entered from outside, or of an attempt that is over."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import pytest

from monitor.event_decoder import read
from monitor.facts import ObservedEvent
from monitor.guardian import outcome, steer
from monitor.housekeeping_findings import find, still_holds
from monitor.rule_set import ALL, RuleSet
from monitor.rules.rule import Finding
from monitor.sandbox_state import SandboxActivity
from monitor.state_fold import fold
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.task import TaskRetryScheduled
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from sandherd.contracts.subjects import event_subject
from tests.unit.monitor.rule_sets import HOUSEKEEPING

Story = Any
After = Callable[[float], datetime]
IDS = DerivedIds(b"of the monitors")


def folded(events: Iterable[ObservedEvent], state: SandboxActivity | None = None) -> SandboxActivity:
    found = reduce(fold, events, state)
    assert found is not None
    return found


def found(state: SandboxActivity, now: datetime, rules: RuleSet) -> str | None:
    finding = find(state, now, rules, now - timedelta(days=9))
    return None if finding is None else finding.rule


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
def test_paused_sandbox_is_neither_dead_idle_stuck_nor_finished(
    story: Story, rules: RuleSet, after: After, before: Any
) -> None:
    """A frozen sandbox can do and publish nothing, however long."""
    events = [story.seen(kind, **fields) for kind, fields in before]
    assert found(folded([*events, story.seen("sandbox.paused", 10)]), after(40_000), rules) is None


@pytest.mark.parametrize(
    ("before", "limit", "rule"),
    [
        ("agent.message", 90, "dead"),
        ("agent.message", 600, "idle"),
        ("agent.tool_use", 900, "stuck"),
        ("agent.completed", 300, "finished"),
    ],
)
def test_every_limit_is_counted_anew_after_a_resumption(
    story: Story, rules: RuleSet, after: After, before: str, limit: int, rule: str
) -> None:
    """A second before its limit nothing is found, at its limit it is, both counted from the resumption."""
    events = [story.seen(before), story.seen("sandbox.paused", 10), story.seen("sandbox.resumed", 5000)]
    if rule != "dead":
        events.append(story.seen("agent.heartbeat", 5000 + limit - 1))
    assert found(folded(events), after(5000 + limit - 1), rules) is None
    assert found(folded(events), after(5000 + limit), rules) == rule


def test_frozen_sandbox_is_not_nudged(story: Story, rules: RuleSet, after: After) -> None:
    """A loop before a pause is reported after the resumption."""
    looped = folded([*story.loop(4), story.seen("sandbox.paused", 1)])
    assert steer(looped, after(2), rules, IDS) is None
    assert steer(folded([story.seen("sandbox.resumed", 3)], looped), after(4), rules, IDS) is not None


# --- its time to live


@pytest.mark.parametrize(("age", "rule"), [(1000, None), (1059, None), (1060, "too_old")])
def test_sandbox_with_a_named_end_is_the_spawners_to_end(
    story: Story, rules: RuleSet, after: After, age: int, rule: Any
) -> None:
    """Only one that lives beyond the spawner's time to act is found."""
    state = folded([story.seen("sandbox.requested", expires_at=after(1000)), story.seen("agent.message", age)])
    assert found(state, after(age), rules) == rule


def test_extended_sandbox_may_exceed_the_maximum_age(story: Story, rules: RuleSet, after: After) -> None:
    """The maximum age and the first end do not count then, also while it is paused."""
    state = folded(
        [
            story.seen("sandbox.requested", expires_at=after(1000)),
            story.seen("sandbox.extended", 900, runtime="process", expires_at=after(90_000)),
            story.seen("sandbox.paused", 950),
        ]
    )
    assert found(state, after(90_059), rules) is None
    assert found(state, after(90_060), rules) == "too_old"


# --- commands from outside


def test_running_command_is_activity_and_never_stuck(story: Story, rules: RuleSet, after: After) -> None:
    """The worker enforces its limit; when it has ended, the idle time counts from its end."""
    events = [story.seen("agent.message"), story.seen("agent.exec_started", 500), story.seen("agent.heartbeat", 9000)]
    assert found(folded(events), after(9000), rules) is None
    events += [story.seen("agent.exec_completed", 9010), story.seen("agent.heartbeat", 9600)]
    assert found(folded(events), after(9609), rules) is None
    assert found(folded(events), after(9610), rules) == "idle"


def test_finished_sandbox_stays_while_a_command_runs(story: Story, rules: RuleSet, after: After) -> None:
    """A user inspects what the agent has left; an agent's own call that never ended does not count."""
    events = [story.seen("agent.tool_use"), story.seen("agent.completed", 1)]
    running = [story.seen("agent.exec_started", 200), story.seen("agent.heartbeat", 3000)]
    ended = [story.seen("agent.exec_completed", 3010), story.seen("agent.heartbeat", 3300)]
    assert found(folded([*events, *running]), after(3000), rules) is None
    assert found(folded([*events, *running, *ended]), after(3309), rules) is None
    assert found(folded([*events, *running, *ended]), after(3310), rules) == "finished"


def test_upload_is_activity(story: Story, rules: RuleSet, after: After) -> None:
    """A client that uploads uses the sandbox."""
    events = [story.seen("agent.message"), story.seen("agent.file_uploaded", 599), story.seen("agent.heartbeat", 1198)]
    assert found(folded(events), after(1198), rules) is None


# --- without a task


def test_sandbox_without_a_task_is_neither_idle_nor_finished(story: Story, rules: RuleSet, after: After) -> None:
    """Only silence and its time to live end it."""
    events = [
        story.seen("sandbox.requested", task=None, expires_at=after(100_000)),
        story.seen("agent.started", 1, task=None),
        story.seen("agent.heartbeat", 90_000, task=None),
    ]
    assert found(folded(events), after(90_089), rules) is None
    assert found(folded(events), after(90_090), rules) == "dead"
    events.append(story.seen("agent.heartbeat", 100_060, task=None))
    assert found(folded(events), after(100_060), rules) == "too_old"


# --- attempts


@pytest.mark.parametrize("over", ["task.retry_scheduled", "task.failed", "task.cancelled"])
def test_ended_attempt_is_not_nudged(story: Story, rules: RuleSet, after: After, over: str) -> None:
    """The spawner ends its sandbox: it is neither idle nor stuck; if it stays, it is found finished."""
    state = folded([*story.loop(4), story.seen("agent.tool_use", tool_use_id="open"), story.seen(over, 10)])
    assert steer(state, after(11), rules, IDS) is None
    assert outcome(state, rules) is None
    lives = folded([story.seen("agent.heartbeat", 309)], state)
    assert found(lives, after(309), rules) is None
    assert found(lives, after(310), rules) == "finished"


def test_new_attempt_starts_with_an_empty_state(story: Story, rules: RuleSet, after: After) -> None:
    """Loop, calls and silence of the last attempt's sandbox do not count for the next one's."""
    old = folded(
        [*story.loop(4), story.seen("agent.tool_use", tool_use_id="open"), story.seen("task.retry_scheduled", 5)]
    )
    new = folded([story.seen("sandbox.requested", 2000, "sbx-2")])
    assert (old.taskid, new.taskid) == ("task-1", "task-1")
    assert ("loop" in new.parts, dict(new.in_flight), new.finished_at, new.steered) == (False, {}, None, 0)
    assert found(new, after(2089), rules) is None


def test_retry_event_is_attributed_to_the_failed_sandbox(after: After) -> None:
    """The event's subject names the task, its data the sandbox; one without a sandbox is about none."""
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
@pytest.mark.parametrize("rule", HOUSEKEEPING)
def test_record_overrides_a_finding(rule: str, state: SandboxState, after: After) -> None:
    """A stopping sandbox is ignored; a pause not yet read holds all rules but the age."""
    finding = Finding(rule, after(0), 1)
    stored = state in SANDBOX_ENDING or (state is SandboxState.PAUSED and rule != "too_old")
    assert still_holds(finding, SharedSandboxRecord(state=state, task="task-1"), after(5), ALL) != stored


@pytest.mark.parametrize(("rule", "holds"), [("dead", True), ("too_old", True), ("finished", False), ("idle", False)])
def test_record_without_a_task_prevents_the_idle_finding(rule: str, holds: bool, after: After) -> None:
    """The sandbox's first event may never have been read."""
    alone = SharedSandboxRecord(state=SandboxState.RUNNING)
    assert still_holds(Finding(rule, after(0), 1), alone, after(5), ALL) == holds


def test_extension_in_the_record_counts(after: After) -> None:
    """The record is extended before the event is read."""
    running = SharedSandboxRecord(state=SandboxState.RUNNING, task="task-1", expires_at=after(100))
    assert not still_holds(Finding("too_old", after(0), 1), running, after(99), ALL)
    assert still_holds(Finding("too_old", after(0), 1), running, after(100), ALL)
