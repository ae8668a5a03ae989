"""Each rule of the idle watch at its limit, a second before and a second after, with the time passed in."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import pytest

from monitor.fold import fold
from monitor.rules import Limits, judge
from monitor.state import Seen, Watched

Story = Any
After = Callable[[float], datetime]
LONG_AGO = -1_000_000.0


def told(events: Iterable[Seen]) -> Watched:
    state = reduce(fold, events, None)
    assert state is not None
    return state


def found(state: Watched, now: datetime, limits: Limits, watching_since: datetime | None = None) -> str | None:
    finding = judge(state, now, limits, watching_since or now - timedelta(days=9))
    return None if finding is None else finding.rule.value


def alive_at(story: Story, seconds: float) -> Seen:
    heartbeat: Seen = story.seen("agent.heartbeat", seconds)
    return heartbeat


@pytest.mark.parametrize(("age", "rule"), [(89, None), (90, "dead"), (91, "dead")])
def test_dead_after_neither_event_nor_heartbeat(
    story: Story, limits: Limits, after: After, age: int, rule: Any
) -> None:
    """Counted from the last thing that its worker said, whatever it was."""
    state = told([story.seen("agent.started"), story.seen("agent.waiting", 100)])
    assert found(state, after(100 + age), limits) == rule


@pytest.mark.parametrize(("age", "rule"), [(89, None), (90, "dead")])
def test_a_sandbox_that_never_spoke_counts_from_the_spawners_word(
    story: Story, limits: Limits, after: After, age: int, rule: Any
) -> None:
    """The predecessor looked only at sandboxes with a fresh heartbeat, so a dead one was never visited."""
    state = told([story.seen("sandbox.requested"), story.seen("sandbox.spawned", 50)])
    assert found(state, after(50 + age), limits) == rule


@pytest.mark.parametrize(("age", "rule"), [(43_199, None), (43_200, "too_old"), (43_201, "too_old")])
def test_too_old_however_busy(story: Story, limits: Limits, after: After, age: int, rule: Any) -> None:
    """Work does not make it younger."""
    state = told([story.seen("sandbox.requested"), story.seen("agent.message", age)])
    assert found(state, after(age), limits) == rule


@pytest.mark.parametrize(("age", "rule"), [(599, None), (600, "idle"), (601, "idle")])
def test_idle_without_work_although_it_lives(story: Story, limits: Limits, after: After, age: int, rule: Any) -> None:
    """Heartbeats show that it lives, and are no work."""
    state = told([story.seen("agent.started"), story.seen("agent.message", 10), alive_at(story, 10 + age)])
    assert found(state, after(10 + age), limits) == rule


@pytest.mark.parametrize("kind", ["agent.heartbeat", "agent.waiting", "agent.error", "agent.message_injected"])
def test_what_is_no_work_leaves_it_idle(story: Story, limits: Limits, after: After, kind: str) -> None:
    """Neither heartbeats nor errors nor a nudge put off the idle rule."""
    state = told([story.seen("agent.message"), story.seen(kind, 599)])
    assert found(state, after(600), limits) == "idle"


@pytest.mark.parametrize(("age", "rule"), [(899, None), (900, "stuck"), (901, "stuck")])
def test_a_call_in_flight_is_activity_until_it_is_stuck(
    story: Story, limits: Limits, after: After, age: int, rule: Any
) -> None:
    """Long past the idle limit a running tool keeps the sandbox, up to a limit of its own."""
    state = told([story.seen("agent.tool_use"), alive_at(story, age)])
    assert found(state, after(age), limits) == rule


def test_a_call_of_the_model_is_activity_until_it_is_stuck(story: Story, limits: Limits, after: After) -> None:
    """Like a tool's: a long thought is not idle, and one without an end is stuck; one that has ended is forgotten."""
    asked = [story.seen("agent.turn_started"), story.seen("agent.model_call_started", 1)]
    assert found(told([*asked, alive_at(story, 900)]), after(900), limits) is None
    assert found(told([*asked, alive_at(story, 901)]), after(901), limits) == "stuck"
    answered = [*asked, story.seen("agent.model_call_completed", 500), alive_at(story, 1099)]
    assert found(told(answered), after(1099), limits) is None


@pytest.mark.parametrize("answer", ["approval.granted", "approval.expired"])
def test_what_waits_for_a_person_is_not_stuck(story: Story, limits: Limits, after: After, answer: str) -> None:
    """However long it waits; what was to wait begins with the answer, and has its whole time then."""
    asked = [story.seen("agent.tool_use"), story.seen("agent.approval_requested", 1)]
    assert found(told([*asked, alive_at(story, 3600)]), after(3600), limits) is None
    answered = [*asked, story.seen(answer, 3600)]
    assert found(told([*answered, alive_at(story, 4499)]), after(4499), limits) is None
    assert found(told([*answered, alive_at(story, 4500)]), after(4500), limits) == "stuck"


def test_what_was_asked_in_a_turn_that_is_over_keeps_nothing(story: Story, limits: Limits, after: After) -> None:
    """Nobody waits for the answer any more, though it may still be given."""
    events = [*story.call("1"), story.seen("agent.approval_requested", 1), story.seen("agent.turn_completed", 10)]
    assert found(told([*events, alive_at(story, 610)]), after(610), limits) == "idle"


def test_a_whole_program_is_never_stuck(story: Story, limits: Limits, after: After) -> None:
    """The one call that is the agent's program may run for hours: it is neither stuck nor idle while it lives."""
    program = {"tool": "command", "tool_use_id": "a", "event_subtype": "program"}
    state = told([story.seen("agent.started"), story.seen("agent.tool_use", 1, **program), alive_at(story, 40_000)])
    assert found(state, after(40_010), limits) is None


@pytest.mark.parametrize(("age", "rule"), [(3599, None), (3600, "finished")])
def test_what_was_asked_to_stay_stays(story: Story, limits: Limits, after: After, age: int, rule: Any) -> None:
    """A sandbox with a longer time to linger than the rule's keeps it."""
    begun = story.seen("sandbox.requested", runtime="process", linger_seconds=3600)
    state = told([begun, story.seen("agent.completed", 10), alive_at(story, 10 + age)])
    assert found(state, after(10 + age), limits) == rule


def test_an_ended_call_counts_no_more(story: Story, limits: Limits, after: After) -> None:
    """After its result the idle clock runs from that result."""
    state = told([*story.call("1"), alive_at(story, 600)])
    assert found(state, after(600), limits) == "idle"


@pytest.mark.parametrize(("age", "rule"), [(299, None), (300, "finished"), (301, "finished")])
def test_finished_without_a_message(story: Story, limits: Limits, after: After, age: int, rule: Any) -> None:
    """A finished agent gets five minutes for a follow-up."""
    state = told([story.seen("agent.started"), story.seen("agent.completed", 50), alive_at(story, 50 + age)])
    assert found(state, after(50 + age), limits) == rule


def test_a_message_gives_a_finished_agent_its_time_again(story: Story, limits: Limits, after: After) -> None:
    """Counted from the message, and then from the work that it led to."""
    events = [story.seen("agent.completed"), story.seen("message.acknowledged", 299, message_id="m1")]
    assert found(told([*events, alive_at(story, 301)]), after(301), limits) is None
    events.append(story.seen("agent.message", 400))
    assert found(told([*events, alive_at(story, 699)]), after(699), limits) is None
    assert found(told([*events, alive_at(story, 700)]), after(700), limits) == "finished"


@pytest.mark.parametrize("end", ["sandbox.stopping", "sandbox.terminated", "sandbox.failed"])
def test_what_stops_or_has_ended_is_left_alone(story: Story, limits: Limits, after: After, end: str) -> None:
    """The spawner is at it already."""
    assert found(told([story.seen("agent.message"), story.seen(end, 1)]), after(9_000), limits) is None


def test_silence_proves_nothing_until_the_broker_was_back_for_long_enough(
    story: Story, limits: Limits, after: After
) -> None:
    """After an outage of an hour nobody is dead until a living worker must have spoken; age counts at once."""
    state = told([story.seen("agent.started")])
    assert found(state, after(3600 + 89), limits, after(3600)) is None
    assert found(state, after(3600 + 90), limits, after(3600)) == "dead"
    assert found(state, after(50_000), limits, after(50_000)) == "too_old"


def test_what_was_found_is_found_again_only_after_a_while(story: Story, limits: Limits, after: After) -> None:
    """The spawner gets its time; a sandbox that still lives after it is reported again."""
    found_at = {"rule": "dead", "age_seconds": 100, "limit_seconds": 90}
    state = told([story.seen("agent.started"), story.seen("monitor.dead_found", 100, **found_at)])
    assert found(state, after(159), limits) is None
    assert found(state, after(160), limits) == "dead"
    assert state.found is not None
    assert state.found.times == 1
