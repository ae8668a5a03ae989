"""Each rule of the idle watch at its limit, a second before and a second after, with the time passed in."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import pytest

from monitor.facts import ObservedEvent
from monitor.housekeeping_findings import find
from monitor.rule_set import RuleSet
from monitor.sandbox_state import SandboxActivity
from monitor.state_fold import fold

Story = Any
After = Callable[[float], datetime]
LONG_AGO = -1_000_000.0


def folded(events: Iterable[ObservedEvent]) -> SandboxActivity:
    state = reduce(fold, events, None)
    assert state is not None
    return state


def found(state: SandboxActivity, now: datetime, rules: RuleSet, watching_since: datetime | None = None) -> str | None:
    finding = find(state, now, rules, watching_since or now - timedelta(days=9))
    return None if finding is None else finding.rule


def alive_at(story: Story, seconds: float) -> ObservedEvent:
    heartbeat: ObservedEvent = story.seen("agent.heartbeat", seconds)
    return heartbeat


@pytest.mark.parametrize(("age", "rule"), [(89, None), (90, "dead"), (91, "dead")])
def test_sandbox_without_event_or_heartbeat_is_dead(
    story: Story, rules: RuleSet, after: After, age: int, rule: Any
) -> None:
    """The time counts from its worker's last event of any type."""
    state = folded([story.seen("agent.started"), story.seen("agent.waiting", 100)])
    assert found(state, after(100 + age), rules) == rule


@pytest.mark.parametrize(("age", "rule"), [(89, None), (90, "dead")])
def test_silent_sandbox_counts_from_the_spawners_event(
    story: Story, rules: RuleSet, after: After, age: int, rule: Any
) -> None:
    """A sandbox without a heartbeat is judged by the age of its start."""
    state = folded([story.seen("sandbox.requested"), story.seen("sandbox.spawned", 50)])
    assert found(state, after(50 + age), rules) == rule


@pytest.mark.parametrize(("age", "rule"), [(43_199, None), (43_200, "too_old"), (43_201, "too_old")])
def test_busy_sandbox_can_be_too_old(story: Story, rules: RuleSet, after: After, age: int, rule: Any) -> None:
    """Work does not extend its age."""
    state = folded([story.seen("sandbox.requested"), story.seen("agent.message", age)])
    assert found(state, after(age), rules) == rule


@pytest.mark.parametrize(("age", "rule"), [(599, None), (600, "idle"), (601, "idle")])
def test_sandbox_with_heartbeats_only_is_idle(story: Story, rules: RuleSet, after: After, age: int, rule: Any) -> None:
    """Heartbeats show that it runs, and are not work."""
    state = folded([story.seen("agent.started"), story.seen("agent.message", 10), alive_at(story, 10 + age)])
    assert found(state, after(10 + age), rules) == rule


@pytest.mark.parametrize("kind", ["agent.heartbeat", "agent.waiting", "agent.error", "agent.message_injected"])
def test_events_that_are_no_work_leave_it_idle(story: Story, rules: RuleSet, after: After, kind: str) -> None:
    """Heartbeats, errors and a nudge do not put off the idle rule."""
    state = folded([story.seen("agent.message"), story.seen(kind, 599)])
    assert found(state, after(600), rules) == "idle"


@pytest.mark.parametrize(("age", "rule"), [(899, None), (900, "stuck"), (901, "stuck")])
def test_open_call_is_activity_until_it_is_stuck(
    story: Story, rules: RuleSet, after: After, age: int, rule: Any
) -> None:
    """Long past the idle limit a running tool keeps the sandbox, up to a limit of its own."""
    state = folded([story.seen("agent.tool_use"), alive_at(story, age)])
    assert found(state, after(age), rules) == rule


def test_open_model_call_is_activity_until_it_is_stuck(story: Story, rules: RuleSet, after: After) -> None:
    """A long model call is not idle, and one without an end is stuck; an ended one is dropped."""
    requested = [story.seen("agent.turn_started"), story.seen("agent.model_call_started", 1)]
    assert found(folded([*requested, alive_at(story, 900)]), after(900), rules) is None
    assert found(folded([*requested, alive_at(story, 901)]), after(901), rules) == "stuck"
    answered = [*requested, story.seen("agent.model_call_completed", 500), alive_at(story, 1099)]
    assert found(folded(answered), after(1099), rules) is None


@pytest.mark.parametrize("answer", ["approval.granted", "approval.expired"])
def test_sandbox_waiting_for_an_approval_is_not_stuck(story: Story, rules: RuleSet, after: After, answer: str) -> None:
    """The wait may take any time; the time limit begins again at the decision."""
    requested = [story.seen("agent.tool_use"), story.seen("agent.approval_requested", 1)]
    assert found(folded([*requested, alive_at(story, 3600)]), after(3600), rules) is None
    answered = [*requested, story.seen(answer, 3600)]
    assert found(folded([*answered, alive_at(story, 4499)]), after(4499), rules) is None
    assert found(folded([*answered, alive_at(story, 4500)]), after(4500), rules) == "stuck"


def test_approval_of_an_ended_turn_does_not_keep_it_busy(story: Story, rules: RuleSet, after: After) -> None:
    """The turn no longer waits for the decision, though it may still be made."""
    events = [*story.call("1"), story.seen("agent.approval_requested", 1), story.seen("agent.turn_completed", 10)]
    assert found(folded([*events, alive_at(story, 610)]), after(610), rules) == "idle"


def test_working_sub_agent_is_not_stuck(story: Story, rules: RuleSet, after: After) -> None:
    """The call of a sub-agent may take hours as long as the sub-agent works; without work the call is stuck."""
    called = [story.seen("agent.started"), story.seen("agent.subagent_invoked", 1)]
    worked = [event for number in range(4) for event in story.call(f"c{number}", 600 * (number + 1))]
    assert found(folded([*called, alive_at(story, 901)]), after(901), rules) == "stuck"
    assert found(folded([*called, *worked, alive_at(story, 3299)]), after(3299), rules) is None
    assert found(folded([*called, *worked, alive_at(story, 3300)]), after(3300), rules) == "stuck"


def test_program_call_is_never_stuck(story: Story, rules: RuleSet, after: After) -> None:
    """The one call that is the agent's program may run for hours: it is neither stuck nor idle while it lives."""
    program = {"tool": "command", "tool_use_id": "a", "event_subtype": "program"}
    state = folded([story.seen("agent.started"), story.seen("agent.tool_use", 1, **program), alive_at(story, 40_000)])
    assert found(state, after(40_010), rules) is None


@pytest.mark.parametrize(("age", "rule"), [(3599, None), (3600, "finished")])
def test_lingering_sandbox_is_not_finished(story: Story, rules: RuleSet, after: After, age: int, rule: Any) -> None:
    """A linger time beyond the rule's limit is respected."""
    begun = story.seen("sandbox.requested", runtime="process", linger_seconds=3600)
    state = folded([begun, story.seen("agent.completed", 10), alive_at(story, 10 + age)])
    assert found(state, after(10 + age), rules) == rule


def test_ended_call_is_no_activity(story: Story, rules: RuleSet, after: After) -> None:
    """After its result the idle time counts from that result."""
    state = folded([*story.call("1"), alive_at(story, 600)])
    assert found(state, after(600), rules) == "idle"


@pytest.mark.parametrize(("age", "rule"), [(299, None), (300, "finished"), (301, "finished")])
def test_agent_without_a_message_is_finished(story: Story, rules: RuleSet, after: After, age: int, rule: Any) -> None:
    """A finished agent gets five minutes for a follow-up."""
    state = folded([story.seen("agent.started"), story.seen("agent.completed", 50), alive_at(story, 50 + age)])
    assert found(state, after(50 + age), rules) == rule


def test_message_restarts_the_time_of_a_finished_agent(story: Story, rules: RuleSet, after: After) -> None:
    """The time counts from the message, and then from the work that it led to."""
    events = [story.seen("agent.completed"), story.seen("message.acknowledged", 299, message_id="m1")]
    assert found(folded([*events, alive_at(story, 301)]), after(301), rules) is None
    events.append(story.seen("agent.message", 400))
    assert found(folded([*events, alive_at(story, 699)]), after(699), rules) is None
    assert found(folded([*events, alive_at(story, 700)]), after(700), rules) == "finished"


@pytest.mark.parametrize("end", ["sandbox.stopping", "sandbox.terminated", "sandbox.failed"])
def test_stopping_or_ended_sandbox_is_ignored(story: Story, rules: RuleSet, after: After, end: str) -> None:
    """The spawner already ends it."""
    assert found(folded([story.seen("agent.message"), story.seen(end, 1)]), after(9_000), rules) is None


def test_silence_counts_only_long_after_the_brokers_return(story: Story, rules: RuleSet, after: After) -> None:
    """After an outage no sandbox is dead until a living worker must have published; age counts at once."""
    state = folded([story.seen("agent.started")])
    assert found(state, after(3600 + 89), rules, after(3600)) is None
    assert found(state, after(3600 + 90), rules, after(3600)) == "dead"
    assert found(state, after(50_000), rules, after(50_000)) == "too_old"


def test_finding_is_repeated_only_after_an_interval(story: Story, rules: RuleSet, after: After) -> None:
    """The spawner gets its time; a sandbox that still lives after it is reported again."""
    found_at = {"rule": "dead", "age_seconds": 100, "limit_seconds": 90}
    state = folded([story.seen("agent.started"), story.seen("monitor.dead_found", 100, **found_at)])
    assert found(state, after(159), rules) is None
    assert found(state, after(160), rules) == "dead"
    assert state.found is not None
    assert state.found.times == 1
