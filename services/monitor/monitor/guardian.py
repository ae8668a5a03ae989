"""The guardian: intervenes when a guardian rule finds a pattern in an agent's behaviour. Pure.

A rule defines its pattern, the advice to the agent, and how the pattern is recognised again. The intervention ladder
determines the step. This module is the same for all rules: it decides on an intervention once, and determines its next
command and its one outcome.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final

from monitor import evaluation, intervention_ladder
from monitor.evaluation import call, is_active, is_muted, part_of
from monitor.rule_set import RuleSet
from monitor.rules.rule import AnyGuardianRule, GuardianRule, Pattern
from monitor.sandbox_state import ObservedState, Outcome, SandboxActivity, Steering
from sandherd.contracts.events.monitor import InterventionStep, SteeringStep
from sandherd.contracts.names import DerivedIds

RESEND_AFTER: Final = 10.0
"""Seconds in which a service must carry out a command. After that, the command is sent again."""
CLEAR_AFTER: Final = 10
"""An agent has recovered after this number of turns, or of the rule's observations (calls), without the pattern."""
MESSAGE_STEPS: Final = frozenset({"nudge", "interrupt"})
"""The steps that send a message."""


@dataclass(frozen=True, slots=True)
class GuardianDecision:
    """The decision about a pattern: an intervention (`steering`), or only to publish the pattern."""

    pattern: Pattern
    step: SteeringStep
    """The step that the pattern leads to; if the maximum is `observe`, the step that its count reaches."""
    steering: Steering | None = None


class NextCommand(Enum):
    """The next command of an intervention."""

    MESSAGE = "message"
    PAUSE = "pause"
    APPROVAL = "approval"
    WITHDRAWAL = "withdrawal"
    RESUME = "resume"
    INSTRUCTION = "instruction"
    TERMINATION = "termination"


def steer(state: SandboxActivity, now: datetime, rules: RuleSet, ids: DerivedIds) -> GuardianDecision | None:
    """The decision about the first pattern that requires one. Raises `RuleFailedError`.

    None for a paused or stopping agent. There is no intervention if the agent has finished, if the last intervention
    has no outcome yet, or during the cool-down. Then only rules that publish patterns without acting on them are
    evaluated, or all rules if the maximum is `observe` and the agent has not finished. The ids of an intervention are
    derived from its pattern and number, so that it is not sent twice after a restart. `ids` derives them with a key
    that only monitors have: an agent knows its calls, and must not be able to send a message with such an id first.
    """
    if state.ended or state.stopping or state.paused or state.found is not None:
        return None
    highest, accepts = intervention_ladder.maximum_step(state, rules), _accepts_intervention(state, now, rules)
    all_count = accepts or (highest == "observe" and state.finished_at is None)
    for active in rules.guardian if all_count else rules.observing:
        if active.name in state.disabled or is_muted(state, active.name, now):
            continue
        rule, part = active.rule, state.parts.get(active.name, active.new_part)
        assert isinstance(rule, GuardianRule)
        pattern = call(rule, "decision", rule.evaluate, part, state, now, active.thresholds)
        step = intervention_ladder.due_step(state, rule, pattern, rules) if pattern is not None else None
        if pattern is None or step is None or not _may_act(rule, state, rules):
            continue
        step = evaluation.reached_step(rule, pattern, rules) or step if highest == "observe" else step
        decision = _decision(state, rule, pattern, step, now=now, rules=rules, ids=ids)
        if decision is not None and (accepts or decision.steering is None):
            return decision
    return None


def _may_act(rule: AnyGuardianRule, state: SandboxActivity, rules: RuleSet) -> bool:
    """Whether the rule's pattern may be acted upon. If a model assesses the rule's patterns, its verdict decides."""
    if not rule.soft or not rules.assesses:
        return True
    verdict = state.assessed.get(rule.name)
    if verdict is None or verdict == "working":
        return False
    return verdict == "at_fault" or not rule.requires_assessor


def suspicion(state: SandboxActivity, now: datetime, rules: RuleSet) -> Pattern | None:
    """A soft pattern that must be assessed. Each is assessed once in an episode. Raises `RuleFailedError`."""
    if state.ended or state.stopping or state.paused or state.finished_at is not None:
        return None
    for active in rules.soft:
        if active.name in state.disabled or active.name in state.assessed or is_muted(state, active.name, now):
            continue
        part = state.parts.get(active.name, active.new_part)
        if (pattern := call(active.rule, "decision", active.evaluate, part, state, now, active.thresholds)) is not None:
            return pattern
    return None


def _decision(
    state: SandboxActivity,
    rule: AnyGuardianRule,
    pattern: Pattern,
    step: SteeringStep,
    *,
    now: datetime,
    rules: RuleSet,
    ids: DerivedIds,
) -> GuardianDecision | None:
    watched = rules.by_name.get(pattern.watched or rule.name)
    highest = intervention_ladder.maximum_step(state, rules)
    lowered = intervention_ladder.permitted_step(watched if isinstance(watched, GuardianRule) else rule, step, highest)
    if lowered == "observe":
        return None if observed_state(pattern, step) in state.observed else GuardianDecision(pattern, step)
    last = intervention_ladder.last_against(state, pattern)
    if pattern.watched and (last is None or intervention_ladder.rank(lowered) <= intervention_ladder.rank(last.step)):
        return None  # the maximum prevents the next step: the pattern's own rule repeats the last step
    if pattern.watched and not _is_present(pattern, state, rules):
        return None
    text = call(rule, "steering_text", rule.steering_text, part_of(state, rule, rules))
    return GuardianDecision(pattern, step, _steering(pattern, lowered, text, state, now=now, ids=ids))


def _is_present(pattern: Pattern, state: SandboxActivity, rules: RuleSet) -> bool:
    """Whether the rule that recognises a pattern sees it at present, even below its thresholds."""
    name = pattern.watched
    current = evaluation.current_pattern(name, state, rules) if is_active(name, state, rules) else None
    return current is not None and current.key == pattern.key


def observed_state(pattern: Pattern, step: SteeringStep) -> ObservedState:
    """The form in which a pattern that is only published is remembered."""
    return ObservedState(pattern.rule, pattern.key, pattern.began, step)


def _steering(
    pattern: Pattern, step: InterventionStep, text: str, state: SandboxActivity, *, now: datetime, ids: DerivedIds
) -> Steering:
    number = state.steered + 1
    id = ids.derive(pattern.since, pattern.rule, state.project, state.sandbox, pattern.key, pattern.began, number)
    return Steering(
        correlation=str(id),
        message=f"msg-{id.hex}",
        text=text,
        rule=pattern.rule,
        number=number,
        decided_at=now,
        pattern=pattern.key,
        evidence=pattern.evidence,
        step=step,
        watched=pattern.watched or pattern.rule,
        approval=f"pause-{id.hex}" if step == "pause" else None,
    )


def _accepts_intervention(state: SandboxActivity, now: datetime, rules: RuleSet) -> bool:
    if state.steering is not None or state.finished_at is not None:
        return False
    return state.steered_at is None or (now - state.steered_at).total_seconds() >= rules.steering_cooldown


def outcome(state: SandboxActivity, rules: RuleSet) -> Outcome | None:
    """The outcome of the last decided intervention, once it is known. Raises `RuleFailedError`."""
    steering = state.steering
    if steering is None or (_approval_is_open(steering) and not state.ended):
        return None
    if steering.outcome is not None:
        return steering.outcome
    if steering.received_at is None:
        return "finished" if state.finished_at is not None and steering.cancelled else None
    if not is_active(steering.watched, state, rules):
        return "finished"  # no rule shows any more whether the agent obeys; other interventions must not wait
    rule = rules.by_name[steering.watched]
    assert isinstance(rule, GuardianRule)
    limit = call(rule, "ignored_after", rule.ignored_after, rules.thresholds[rule.name])
    if steering.repeats >= limit:
        return "ignored"
    clear_count = max(steering.others, state.turn - steering.clear_turn)
    return "recovered" if clear_count >= CLEAR_AFTER else None


def _approval_is_open(steering: Steering) -> bool:
    return steering.requested and not steering.closed


def next_command(state: SandboxActivity) -> NextCommand | None:
    """The next command of the intervention that has no outcome yet; None if no command has to be sent or repeated."""
    steering = state.steering
    if steering is None or state.ended:
        return None
    if steering.step == "pause":
        return _next_of_pause(state, steering)
    if steering.outcome is not None or state.finished_at is not None:
        return None
    if steering.step == "terminate":
        return None if state.stopping else NextCommand.TERMINATION
    return None if steering.taken else NextCommand.MESSAGE


def _next_of_pause(state: SandboxActivity, steering: Steering) -> NextCommand | None:
    if state.stopping:
        return None
    if steering.answer == "stop":
        return NextCommand.TERMINATION
    if steering.received_at is not None or steering.outcome is not None:
        return _next_after_pause(state, steering)
    if state.finished_at is not None:
        return _next_of_cancelled(state, steering)
    return _next_before_answer(steering) if steering.answer is None else NextCommand.RESUME


def _next_before_answer(steering: Steering) -> NextCommand | None:
    if not steering.taken:
        return NextCommand.PAUSE
    return None if steering.requested or steering.closed else NextCommand.APPROVAL


def _next_of_cancelled(state: SandboxActivity, steering: Steering) -> NextCommand | None:
    """The next command after the agent has ended while its sandbox was about to be paused."""
    if _approval_is_open(steering):
        return NextCommand.WITHDRAWAL
    return None if steering.cancelled and not state.paused else NextCommand.RESUME


def _next_after_pause(state: SandboxActivity, steering: Steering) -> NextCommand | None:
    if _approval_is_open(steering):
        return NextCommand.WITHDRAWAL
    must_instruct = steering.answer == "continue" and bool(steering.instruction) and not steering.instructed
    return NextCommand.INSTRUCTION if must_instruct and state.finished_at is None else None


def command_to_send(state: SandboxActivity, now: datetime) -> NextCommand | None:
    """The next command, if it was not sent yet, or was not carried out within `RESEND_AFTER` and may be lost."""
    command = next_command(state)
    if command is None or state.steering is None:
        return None
    sent = state.steering.sent_at
    return command if sent is None or (now - sent).total_seconds() >= RESEND_AFTER else None


def after_command(state: SandboxActivity, sending: NextCommand, now: datetime) -> SandboxActivity:
    """The state after a command was sent; unchanged if the event of its effect was read meanwhile."""
    steering = state.steering
    if steering is None or next_command(state) is not sending:
        return state
    cancelled = steering.cancelled or (sending is NextCommand.RESUME and state.finished_at is not None)
    return state.changed(steering=replace(steering, sent_at=now, cancelled=cancelled))
