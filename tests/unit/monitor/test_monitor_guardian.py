"""The loop rule, the nudge, and its outcome."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import reduce
from typing import Any

import pytest

from monitor.evaluation import first_finding
from monitor.facts import ObservedEvent
from monitor.guardian import NextCommand, after_command, command_to_send, outcome, steer
from monitor.rule_set import RuleSet
from monitor.sandbox_state import SandboxActivity
from monitor.state_fold import fold, fold_unchecked
from sandherd.contracts.names import DerivedIds

Story = Any
After = Callable[[float], datetime]
IDS = DerivedIds(b"of the monitors")


def folded(events: Iterable[ObservedEvent], state: SandboxActivity | None = None) -> SandboxActivity:
    found = reduce(fold, events, state)
    assert found is not None
    return found


def looping(state: SandboxActivity, rules: RuleSet) -> object:
    """The loop rule and the pattern that it finds, if any."""
    return first_finding([rule for rule in rules.guardian if rule.name == "loop"], state, state.last_sign_at)


def decided(story: Story, state: SandboxActivity, now: datetime, rules: RuleSet) -> tuple[ObservedEvent, str]:
    """The monitor's own event of a nudge that it decides, and the message's id."""
    nudge = steer(state, now, rules, IDS)
    assert nudge is not None
    steering = nudge.steering
    assert steering is not None
    seconds = (now - steering.decided_at).total_seconds()
    event = story.seen(
        "monitor.intervention_decided",
        seconds,
        rule="loop",
        step="nudge",
        message_id=steering.message,
        correlation_id=steering.correlation,
        intervention_number=steering.number,
        message=steering.text,
        pattern=steering.pattern,
        evidence=[str(one) for one in steering.evidence],
    )
    return event, steering.message


def nudged(story: Story, rules: RuleSet, after: After) -> tuple[SandboxActivity, str]:
    """An agent that looped, was nudged, and has the message."""
    state = folded(story.loop(4))
    event, message = decided(story, state, after(0), rules)
    outcomes = [
        story.seen("message.queued", 1, message_id=message, content_length=1, message_type="guardian_nudge"),
        story.seen("message.acknowledged", 1, message_id=message, message_type="guardian_nudge"),
    ]
    return folded([event, *outcomes], state), message


@pytest.mark.parametrize(("times", "loops"), [(3, False), (4, True), (5, True)])
def test_repeated_call_with_the_same_result_is_a_loop(story: Story, rules: RuleSet, times: int, loops: bool) -> None:
    """Three equal calls are not a loop, four are."""
    assert (looping(folded(story.loop(times)), rules) is not None) == loops


def test_other_result_restarts_the_count(story: Story, rules: RuleSet) -> None:
    """Only calls with equal results count."""
    other_result = [*story.loop(3), *story.call("y", result="else"), *story.loop(3, first=20)]
    assert looping(folded(other_result), rules) is None


def test_events_between_equal_calls_do_not_matter(story: Story, rules: RuleSet) -> None:
    """Thoughts and texts between equal calls make no difference."""
    events = [event for call in range(4) for event in (*story.call(str(call)), story.seen("agent.thinking"))]
    assert looping(folded(events), rules) is not None


def test_order_of_input_members_does_not_matter(story: Story, rules: RuleSet) -> None:
    """The input is compared as JSON."""
    inputs = [{"a": 1, "b": 2}, {"b": 2, "a": 1}] * 2
    assert looping(folded(event for n, given in enumerate(inputs) for event in story.call(str(n), given=given)), rules)


def test_call_with_two_ends_counts_once(story: Story, rules: RuleSet) -> None:
    """tool_completed, tool_result and user_tool_result of one call are one call."""
    events = []
    for number in range(3):
        key = str(number)
        events += [
            story.seen("agent.tool_use", tool="Bash", tool_use_id=key),
            story.seen("agent.tool_completed", tool="Bash", tool_use_id=key, tool_response="r"),
            story.seen("agent.tool_result", tool_use_id=key, result="r"),
            story.seen("agent.user_tool_result", tool_use_id=key, result="r"),
        ]
    state = folded(events)
    assert state.parts["loop"].top_count == 3


def test_completion_without_an_id_is_counted(story: Story, rules: RuleSet) -> None:
    """A tool_completed without an id names no call; tool and input identify it."""
    events = []
    for number in range(4):
        events += [
            story.seen("agent.tool_use", tool="Bash", tool_use_id=str(number), input={"command": "ls"}),
            story.seen(
                "agent.tool_completed", tool="Bash", tool_use_id=None, tool_input={"command": "ls"}, tool_response=[1]
            ),
        ]
    state = folded(events)
    assert looping(state, rules) is not None
    assert state.in_flight == {}


def test_end_stored_before_its_begin_leaves_no_open_call(story: Story) -> None:
    """Publishing may swap two events; a call that has ended must not look stuck for ever."""
    begin, end = story.call("1")
    assert folded([replace(end, number=1), replace(begin, number=2)]).in_flight == {}


def test_nudge_names_the_repetition_and_has_stable_ids(story: Story, rules: RuleSet, after: After) -> None:
    """If it is decided on twice, at different times, the nudge is the same message, so it is published once."""
    state = folded(story.loop(4))
    first, second = steer(state, after(1), rules, IDS), steer(state, after(9), rules, IDS)
    assert first is not None
    assert second is not None
    assert first.steering is not None
    assert second.steering is not None
    assert (first.steering.message, first.steering.correlation) == (
        second.steering.message,
        second.steering.correlation,
    )
    assert "Bash 4 times in a row" in first.steering.text


def test_no_second_nudge_while_the_first_is_unread(story: Story, rules: RuleSet, after: After) -> None:
    """This holds however long it takes and however often the call repeats."""
    state = folded(story.loop(4))
    event, _ = decided(story, state, after(0), rules)
    state = folded([event, *story.loop(10, first=50)], state)
    assert steer(state, after(100_000), rules, IDS) is None


@pytest.mark.parametrize(("age", "again"), [(299, False), (300, True), (301, True)])
def test_ignored_nudge_is_repeated_after_the_cool_down(
    story: Story, rules: RuleSet, after: After, age: int, again: bool
) -> None:
    """No other nudge is sent before the cool-down has ended."""
    state, _ = nudged(story, rules, after)
    state = folded([*story.loop(4, first=100), *outcome_event(story, state, "ignored")], state)
    nudge = steer(state, after(age), rules, IDS)
    assert (nudge is not None) == again
    assert nudge is None or (nudge.steering is not None and nudge.steering.number == 2)


def outcome_event(story: Story, state: SandboxActivity, came: str) -> list[ObservedEvent]:
    assert state.steering is not None
    return [
        story.seen("monitor.intervention_outcome", correlation_id=state.steering.correlation, outcome=came),
    ]


def test_finished_agent_is_never_nudged(story: Story, rules: RuleSet, after: After) -> None:
    """A stopping, paused or reported agent is not nudged either."""
    for last in ("agent.completed", "sandbox.stopping", "sandbox.paused"):
        assert steer(folded([*story.loop(4), story.seen(last)]), after(0), rules, IDS) is None


def others(story: Story, times: int, first: int = 0) -> list[ObservedEvent]:
    """`count` different calls."""
    calls = (story.call(f"o{first + number}", given=f"cat {first + number}") for number in range(times))
    return [event for call in calls for event in call]


def test_one_different_call_is_not_obeyed_yet(story: Story, rules: RuleSet, after: After) -> None:
    """The loop may resume: ten calls without it are needed, and a repetition between begins the count again."""
    state, _ = nudged(story, rules, after)
    assert looping(state, rules) is not None  # a nudge resets no detector
    assert outcome(folded(others(story, 9), state), rules) is None
    resumed = folded([*others(story, 9, 20), *story.loop(1, first=30), *others(story, 9, 40)], state)
    assert outcome(resumed, rules) is None
    assert outcome(folded(others(story, 11, 60), resumed), rules) == "recovered"


def test_pattern_that_is_gone_for_ten_turns_is_recovered(story: Story, rules: RuleSet, after: After) -> None:
    """Turns count from the receipt, or from the last repetition."""
    state, _ = nudged(story, rules, after)
    turn = [story.seen("agent.turn_completed", 3, turn=number) for number in range(1, 12)]
    assert outcome(folded(turn[:9], state), rules) is None
    assert outcome(folded(turn[:10], state), rules) == "recovered"


def test_agent_that_ends_without_the_pattern_has_obeyed(story: Story, rules: RuleSet, after: After) -> None:
    """It did something else, and the loop can't resume any more. The end of its sandbox does not show this."""
    state, _ = nudged(story, rules, after)
    did = folded(others(story, 1), state)
    assert outcome(folded([story.seen("agent.completed", 5)], did), rules) == "obeyed"
    assert outcome(folded([story.seen("sandbox.terminated", 5)], did), rules) == "finished"


def test_nudge_is_ignored_after_as_many_repetitions(story: Story, rules: RuleSet, after: After) -> None:
    """Three more calls do not mean that it is ignored; the fourth does."""
    state, _ = nudged(story, rules, after)
    assert outcome(folded(story.loop(3, first=10), state), rules) is None
    assert outcome(folded(story.loop(4, first=20), state), rules) == "ignored"


def test_call_before_the_receipt_of_a_nudge_does_not_count(story: Story, rules: RuleSet, after: After) -> None:
    """A different call before the receipt is not obedience."""
    state = folded(story.loop(4))
    event, _ = decided(story, state, after(0), rules)
    assert outcome(folded([event, *story.call("new", given="cat")], state), rules) is None


@pytest.mark.parametrize(
    ("kind", "fields"), [("message.rejected", {"reason": "gone"}), ("message.expired", {"waited_ms": 1})]
)
def test_undeliverable_nudge_is_undelivered(story: Story, rules: RuleSet, after: After, kind: str, fields: Any) -> None:
    """The relay has rejected the message."""
    state = folded(story.loop(4))
    event, message = decided(story, state, after(0), rules)
    state = folded([event, story.seen(kind, 1, message_id=message, **fields)], state)
    assert outcome(state, rules) == "undelivered"


@pytest.mark.parametrize("end", ["agent.completed", "agent.failed", "sandbox.terminated"])
def test_nudge_is_finished_when_the_agent_ended_first(story: Story, rules: RuleSet, after: After, end: str) -> None:
    """The outcome is neither obeyed nor ignored."""
    state, _ = nudged(story, rules, after)
    assert outcome(folded([story.seen(end, 2)], state), rules) == "finished"


def test_nudge_not_accepted_by_the_relay_is_sent_again(story: Story, rules: RuleSet, after: After) -> None:
    """The decision was published, and its command lost with the monitor.

    The command is sent, and again after ten seconds.
    """
    state = folded(story.loop(4))
    event, message = decided(story, state, after(0), rules)
    state = folded([event], state)
    assert command_to_send(state, after(0)) is NextCommand.MESSAGE
    state = after_command(state, NextCommand.MESSAGE, after(0))
    assert command_to_send(state, after(9)) is None
    assert command_to_send(state, after(10)) is NextCommand.MESSAGE
    taken = story.seen("message.queued", 1, message_id=message, content_length=1)
    assert command_to_send(folded([taken], state), after(99)) is None


def test_own_event_read_again_changes_nothing(story: Story, rules: RuleSet, after: After) -> None:
    """The monitor folds its own event at once; when it comes from the stream, the state is unchanged."""
    state = folded(story.loop(4))
    event, _ = decided(story, state, after(0), rules)
    once = fold_unchecked(state, event)
    assert replace(fold_unchecked(once, event), number=once.number) == once
