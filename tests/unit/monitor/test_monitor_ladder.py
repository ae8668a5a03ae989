"""The intervention ladder: which step follows, its maximum, pauses with their answers, and muted rules."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import pytest

from monitor import decision_events
from monitor.facts import ObservedEvent
from monitor.guardian import GuardianDecision, NextCommand, after_command, command_to_send, next_command, outcome, steer
from monitor.herd import Herd
from monitor.rule_set import RuleSet
from monitor.sandbox_state import MAX_INTERVENTIONS, SandboxActivity
from monitor.snapshot import pack, unpack
from monitor.state_fold import fold, fold_unchecked
from sandherd.contracts.names import DerivedIds
from tests.unit.monitor.rule_sets import with_ladder

Story = Any
After = Callable[[float], datetime]
IDS = DerivedIds(b"of the monitors")
LADDER = with_ladder("terminate", 0)


def folded(events: Iterable[ObservedEvent], state: SandboxActivity | None = None) -> SandboxActivity:
    found = reduce(fold, events, state)
    assert found is not None
    return found


def decide(state: SandboxActivity, rules: RuleSet = LADDER, now: datetime | None = None) -> GuardianDecision | None:
    return steer(state, now or state.last_sign_at, rules, IDS)


def steps(state: SandboxActivity) -> list[tuple[str, str]]:
    return [(one.rule, one.step) for one in state.interventions]


def intervened(story: Story, state: SandboxActivity, rules: RuleSet = LADDER, at: float = 0) -> SandboxActivity:
    """The state after the next intervention is decided, as the stream has it."""
    decision = decide(state, rules)
    assert decision is not None
    steering = decision.steering
    assert steering is not None
    return folded(
        [
            story.seen(
                "monitor.intervention_decided",
                at,
                rule=steering.rule,
                step=steering.step,
                message_id=steering.message if steering.step in {"nudge", "interrupt"} else None,
                correlation_id=steering.correlation,
                intervention_number=steering.number,
                message=steering.text,
                pattern=steering.pattern,
                pattern_rule=None if steering.watched == steering.rule else steering.watched,
                approval_id=steering.approval,
                evidence=[str(one) for one in steering.evidence],
            )
        ],
        state,
    )


def received(story: Story, state: SandboxActivity) -> SandboxActivity:
    assert state.steering is not None
    about = {"message_id": state.steering.message, "message_type": "guardian_nudge"}
    return folded([story.seen("message.acknowledged", 1, **about)], state)


def concluded(story: Story, state: SandboxActivity, rules: RuleSet = LADDER) -> SandboxActivity:
    """The state after the outcome is published."""
    assert state.steering is not None
    came = outcome(state, rules)
    assert came is not None
    event = story.seen(
        "monitor.intervention_outcome",
        2,
        correlation_id=state.steering.correlation,
        outcome="obeyed" if came == "recovered" else came,
        recovered=came == "recovered",
        evidence=[str(one) for one in state.steering.repeated],
    )
    return folded([event], state)


def ignored(story: Story, state: SandboxActivity, first: int) -> SandboxActivity:
    """The state after a decided intervention was received, and the loop went on four times."""
    state = received(story, state)
    return concluded(story, folded(story.loop(4, first=first), state))


def paused_by_ladder(story: Story) -> SandboxActivity:
    """Nudged, interrupted, and now to be paused."""
    state = ignored(story, intervened(story, folded(story.loop(4))), 100)
    return intervened(story, ignored(story, intervened(story, state), 200))


def request_data(story: Story, state: SandboxActivity) -> SandboxActivity:
    """The sandbox is paused, and the approval requested."""
    assert state.steering is not None
    request = {"approval_id": state.steering.approval, "tool": "continue"}
    return folded([story.seen("sandbox.paused", 3, runtime="x"), story.seen("approval.requested", 4, **request)], state)


def granted(story: Story, state: SandboxActivity, **fields: Any) -> SandboxActivity:
    assert state.steering is not None
    return folded([story.seen("approval.granted", 5, approval_id=state.steering.approval, by="ada", **fields)], state)


def test_first_intervention_is_the_first_step_however_long_the_pattern(story: Story) -> None:
    """Twenty repetitions reach the pause; the agent was not warned yet, so no step is skipped."""
    decision = decide(folded(story.loop(20)))
    assert decision is not None
    assert decision.steering is not None
    assert decision.steering.step == "nudge"


def test_ignored_steps_lead_to_the_next_one_each(story: Story) -> None:
    """Nudge, interrupt, pause: both the count and `steering_ignored` lead there, and each cites events that exist."""
    state = paused_by_ladder(story)
    assert [step for _, step in steps(state)] == ["nudge", "interrupt", "pause"]
    assert [rule for rule, _ in steps(state)] == ["loop", "steering_ignored", "steering_ignored"]
    assert all(one.evidence for one in state.interventions)
    assert [one.outcome for one in state.interventions] == ["ignored", "ignored", None]


def test_next_step_needs_no_unbroken_row(story: Story) -> None:
    """Other calls between reset the count of a row; the agent ignores the message nevertheless."""
    state = received(story, intervened(story, folded(story.loop(4))))
    calls = [event for n in range(4) for event in (*story.call(f"x{n}", given=f"{n}"), *story.loop(1, first=50 + n))]
    state = concluded(story, folded(calls, state))
    assert steps(intervened(story, state))[-1] == ("steering_ignored", "interrupt")


def test_message_that_was_not_received_leads_to_no_further_step(story: Story) -> None:
    """The agent has not ignored an undelivered message, so the same step follows."""
    state = intervened(story, folded(story.loop(4)))
    assert state.steering is not None
    repeated = story.loop(10, first=30)
    late = story.seen("message.expired", 1, message_id=state.steering.message, waited_ms=1)
    state = concluded(story, folded([*repeated, late], state))
    assert steps(intervened(story, state)) == [("loop", "nudge"), ("loop", "nudge")]


def test_steering_ignored_waits_until_the_pattern_is_there_again(story: Story) -> None:
    """An agent that has stopped during the cool-down is left alone."""
    state = ignored(story, intervened(story, folded(story.loop(4))), 100)
    state = folded((one for number in range(11) for one in story.call(f"o{number}", given=f"pwd {number}")), state)
    assert decide(state) is None
    assert decide(folded(story.loop(2, first=300), state)) is not None


def test_episode_begins_the_ladder_anew(story: Story) -> None:
    """After a message of a user the same pattern leads to its first step."""
    state = ignored(story, intervened(story, folded(story.loop(4))), 100)
    user = story.seen("message.acknowledged", 3, message_id="msg-u", message_type="user_message")
    state = folded([user, *story.loop(4, first=300, at=4)], state)
    assert steps(intervened(story, state))[-1] == ("loop", "nudge")


def test_own_interrupt_begins_no_episode(story: Story) -> None:
    """The monitor's interrupt has the type of a user's interrupt."""
    state = intervened(story, ignored(story, intervened(story, folded(story.loop(4))), 100))
    assert state.steering is not None
    about = {"message_id": state.steering.message, "message_type": "interrupt"}
    state = folded([story.seen("message.acknowledged", 3, **about)], state)
    assert state.episode_at is None
    assert state.parts["loop"].top_count == 8


@pytest.mark.parametrize(
    ("highest", "expected"),
    [("nudge", ["nudge", "nudge"]), ("interrupt", ["nudge", "interrupt"]), ("terminate", ["nudge", "interrupt"])],
)
def test_maximum_limits_the_step(story: Story, highest: Any, expected: list[str]) -> None:
    """The maximum is the herd's, unless the sandbox has its own."""
    rules = with_ladder(highest, 0)
    state = ignored(story, intervened(story, folded(story.loop(4)), rules), 100)
    assert [step for _, step in steps(intervened(story, state, rules))] == expected


def test_sandbox_has_its_own_maximum(story: Story) -> None:
    """The spawner's event sets it; an agent's events can't change it."""
    requested = story.seen("sandbox.requested", max_intervention="observe")
    decision = decide(folded([requested, *story.loop(4)]))
    assert decision is not None
    assert decision.steering is None
    state = folded([story.seen("sandbox.requested", max_intervention="interrupt"), *story.loop(4)])
    assert state.max_step == "interrupt"


def test_observe_publishes_each_step_once_and_sends_nothing(story: Story) -> None:
    """This holds also after the monitor has read its own event again."""
    rules, state, found = with_ladder("observe"), None, []
    for number in range(20):
        state = folded(story.loop(1, first=number), state)
        decision = decide(state, rules)
        if decision is not None:
            assert decision.steering is None
            found.append((decision.pattern.count, decision.step))
            event = story.seen(
                "monitor.guardian_analysed",
                rule="loop",
                needs_steering=False,
                steering_type=decision.step,
                pattern=decision.pattern.key,
                pattern_began=decision.pattern.began,
            )
            state = fold_unchecked(fold_unchecked(state, event), event)
    assert found == [(4, "nudge"), (8, "interrupt"), (12, "pause")]
    assert state is not None
    assert next_command(state) is None


def test_cool_down_holds_between_all_steps(story: Story) -> None:
    """An ignored nudge is followed by the interrupt only when the cool-down is over."""
    rules = with_ladder("terminate", 300)
    state = ignored(story, intervened(story, folded(story.loop(4)), rules), 100)
    assert decide(state, rules, state.last_sign_at + timedelta(seconds=299)) is None
    assert decide(state, rules, state.last_sign_at + timedelta(seconds=300)) is not None


def test_muted_rule_is_not_evaluated_for_a_time(story: Story, after: After) -> None:
    """A restarted monitor knows of the mute by its event. Unmuting ends it."""
    state = folded([*story.loop(4), story.seen("monitor.rule_muted", 1, rule="loop", until=after(60))])
    assert decide(state, now=after(59)) is None
    assert decide(state, now=after(60)) is not None
    assert decide(folded([story.seen("monitor.rule_unmuted", 2, rule="loop")], state), now=after(3)) is not None
    for_ever = folded([story.seen("monitor.rule_muted", 1, rule="loop")], state)
    assert decide(for_ever, now=after(1e9)) is None


def test_pause_is_commanded_and_then_an_approval_is_requested(story: Story, after: After) -> None:
    """The approval is requested once the sandbox is paused; each command is repeated until it is carried out."""
    state = paused_by_ladder(story)
    assert next_command(state) is NextCommand.PAUSE
    state = after_command(state, NextCommand.PAUSE, after(10))
    assert command_to_send(state, after(19)) is None
    assert command_to_send(state, after(20)) is NextCommand.PAUSE
    state = folded([story.seen("sandbox.paused", 21, runtime="x")], state)
    assert command_to_send(state, after(21)) is NextCommand.APPROVAL
    state = request_data(story, state)
    assert (next_command(state), outcome(state, LADDER), decide(state)) == (None, None, None)


def test_granted_pause_continues_and_is_observed_again(story: Story) -> None:
    """The sandbox is resumed. The count begins again, and what the agent does then decides the outcome."""
    state = granted(story, request_data(story, paused_by_ladder(story)))
    assert next_command(state) is NextCommand.RESUME
    state = folded([story.seen("sandbox.resumed", 6, runtime="x")], state)
    assert (next_command(state), outcome(state, LADDER)) == (None, None)
    assert "loop" not in state.parts
    state = concluded(story, folded(story.loop(5, first=300, at=7), state))
    assert state.interventions[-1].outcome == "ignored"
    assert steps(intervened(story, state))[-1] == ("loop", "nudge")


def test_granted_pause_with_a_reason_also_sends_the_instruction(story: Story) -> None:
    """The instruction is sent after the resume, until the relay has accepted it."""
    state = granted(story, request_data(story, paused_by_ladder(story)), reason="use the other database")
    state = folded([story.seen("sandbox.resumed", 6, runtime="x")], state)
    assert state.steering is not None
    assert (next_command(state), state.steering.instruction) == (NextCommand.INSTRUCTION, "use the other database")
    about = {"message_id": state.steering.instruction_message, "message_type": "user_message", "content_length": 1}
    assert next_command(folded([story.seen("message.queued", 7, **about)], state)) is None


def test_denied_pause_ends_the_sandbox(story: Story) -> None:
    """The intervention gets its outcome at the end of the sandbox."""
    state = request_data(story, paused_by_ladder(story))
    assert state.steering is not None
    state = folded([story.seen("approval.denied", 5, approval_id=state.steering.approval, by="ada")], state)
    assert next_command(state) is NextCommand.TERMINATION
    state = folded([story.seen("sandbox.stopping", 6, runtime="x", reason="loop")], state)
    assert next_command(state) is None
    state = folded([story.seen("sandbox.terminated", 7, runtime="x", reason="loop")], state)
    assert outcome(state, LADDER) == "finished"


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("approval.expired", {"outcome": "denied"}),
        ("approval.expired", {"outcome": "withdrawn"}),
        ("approval.denied", {"by": "message-relay", "code": "refused"}),
    ],
)
def test_approval_without_an_answer_leaves_the_sandbox_paused(story: Story, event: str, fields: Any) -> None:
    """It is paused until a user resumes it, or its time to live ends. That is neither continue nor stop."""
    state = request_data(story, paused_by_ladder(story))
    assert state.steering is not None
    state = folded([story.seen(event, 5, approval_id=state.steering.approval, **fields)], state)
    assert (next_command(state), outcome(state, LADDER)) == (None, None)
    assert state.paused


def test_resume_by_a_user_counts_as_the_answer(story: Story) -> None:
    """The open approval is withdrawn."""
    state = request_data(story, paused_by_ladder(story))
    state = folded([story.seen("sandbox.resumed", 6, runtime="x")], state)
    assert next_command(state) is NextCommand.WITHDRAWAL
    assert state.steering is not None
    state = folded([story.seen("approval.expired", 7, approval_id=state.steering.approval, outcome="withdrawn")], state)
    assert (next_command(state), state.steering.answer if state.steering else None) == (None, None)


def test_approval_of_the_agent_is_no_answer(story: Story) -> None:
    """Only the id that the monitor has chosen counts."""
    state = request_data(story, paused_by_ladder(story))
    assert next_command(folded([story.seen("approval.granted", 5, approval_id="pause-of-the-agent")], state)) is None


def test_sandbox_that_can_not_be_paused_is_undelivered(story: Story) -> None:
    """Its runtime refuses the pause, and no approval is requested."""
    state = paused_by_ladder(story)
    about = {"command": "spawner.pause_sandbox", "reason": "the runtime can't pause"}
    state = folded([story.seen("sandbox.refused", 3, runtime="x", **about)], state)
    assert (outcome(state, LADDER), next_command(state)) == ("undelivered", None)


def test_agent_that_ends_before_its_pause_is_not_paused(story: Story) -> None:
    """A pause command that may be under way is cancelled before the outcome is published."""
    state = after_command(paused_by_ladder(story), NextCommand.PAUSE, story_time(story))
    state = folded([story.seen("agent.completed", 3)], state)
    assert (next_command(state), outcome(state, LADDER)) == (NextCommand.RESUME, None)
    state = after_command(state, NextCommand.RESUME, story_time(story))
    assert (next_command(state), outcome(state, LADDER)) == (None, "finished")


def story_time(story: Story) -> datetime:
    at: datetime = story.seen("agent.waiting", 3).at
    return at


def test_terminate_is_repeated_until_the_sandbox_stops(story: Story) -> None:
    """A decision whose command was lost is carried out by the next monitor."""
    state = paused_by_ladder(story)
    assert state.steering is not None
    state = state.changed(steering=replace(state.steering, step="terminate", approval=None))
    assert next_command(state) is NextCommand.TERMINATION
    assert next_command(folded([story.seen("sandbox.stopping", 3, runtime="x", reason="loop")], state)) is None


def test_interventions_are_remembered_with_their_outcomes(story: Story) -> None:
    """The last twenty are remembered, also after a restart from a snapshot, with a pending pause."""
    state = folded(story.loop(4))
    for number in range(25):
        state = ignored(story, intervened(story, state, with_ladder("nudge", 0)), 1000 * (number + 1))
    assert [one.number for one in state.interventions] == list(range(6, 26))
    assert len(state.interventions) == MAX_INTERVENTIONS
    paused = request_data(story, paused_by_ladder(story))
    [restored] = unpack(*pack(Herd(live=[paused]), "a")).live.values()
    assert restored == paused


def test_pattern_of_an_agent_that_has_ended_is_only_published(story: Story) -> None:
    """`unverified_end` evaluates completed work: a step of `observe` needs no agent that could get a message."""
    edit = {"file_path": "a.py", "change_type": "modified", "lines_added": 1, "lines_removed": 0}
    state = folded([story.seen("agent.file_edited", **edit), story.seen("agent.completed", 2, exit_code=0)])
    decision = decide(state)
    assert decision is not None
    assert (decision.pattern.rule, decision.step, decision.steering) == ("unverified_end", "observe", None)


def test_finding_about_a_finished_agent_is_published_once_and_nothing_is_sent(story: Story) -> None:
    """A completed task without a check: evidence for its reviewer; the agent has ended."""
    edited = {"file_path": "a.py", "change_type": "modified", "content_sha256": "0" * 64}
    state = folded([story.seen("agent.started"), story.seen("agent.file_edited", 1, **edited)])
    state = folded([story.seen("agent.completed", 9, turns=1)], state)
    found = decide(state)
    assert found is not None
    assert (found.pattern.rule, found.steering) == ("unverified_end", None)
    data = decision_events.analysis_event(found)
    published = story.seen("monitor.guardian_analysed", 9, **data.model_dump(exclude={"type"}))
    assert decide(folded([published], state)) is None
