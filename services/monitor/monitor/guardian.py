"""The guardian: nudges an agent in whose behaviour a guardian rule finds a pattern. Nudging is its only action so far.

Pure. What a pattern is, what the agent is advised, and whether the pattern is there again, is the rule's; that a nudge
is sent once, delivered, and has one outcome, is the same for all.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from monitor.evaluation import call, first_found, is_active, part_of
from monitor.rule_set import RuleSet
from monitor.rules.rule import GuardianRule, Pattern
from monitor.state import Outcome, SandboxActivity, Steering
from sandherd.contracts.names import DerivedIds

RESEND_AFTER: Final = 10.0
"""How long the message-relay has to accept a nudge before it is sent again, in seconds."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """A decided nudge: the message to the agent (`steering`), and the pattern that it is based on."""

    steering: Steering
    pattern: Pattern


def steer(state: SandboxActivity, now: datetime, rules: RuleSet, ids: DerivedIds) -> Nudge | None:
    """A nudge, if a rule finds a pattern and the agent may receive one. Raises `RuleFailedError`.

    None for a finished agent, while the last nudge has no outcome yet, and within the cool-down. The same pattern with
    the same number gives the same ids, so that a restart does not send it twice. `ids` has the monitors' key: an agent,
    which knows its calls, can't send a message under that id first.
    """
    if not _accepts_nudge(state, now, rules):
        return None
    found = first_found(rules.guardian, state, now)
    if found is None:
        return None
    rule, pattern = found
    assert isinstance(rule, GuardianRule)
    text = call(rule, "steering_text", rule.steering_text, part_of(state, rule, rules))
    return Nudge(_steering(pattern, text, state, now, ids), pattern)


def _steering(pattern: Pattern, text: str, state: SandboxActivity, now: datetime, ids: DerivedIds) -> Steering:
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
    )


def _accepts_nudge(state: SandboxActivity, now: datetime, rules: RuleSet) -> bool:
    if state.ended or state.stopping or state.paused or state.finished_at is not None:
        return False
    if state.steering is not None or state.found is not None:
        return False
    return state.steered_at is None or (now - state.steered_at).total_seconds() >= rules.steering_cooldown


def outcome(state: SandboxActivity, rules: RuleSet) -> Outcome | None:
    """The outcome of the last decided nudge, once it is known. Raises `RuleFailedError`."""
    steering = state.steering
    if steering is None or steering.outcome is not None:
        return None if steering is None else steering.outcome
    if steering.received_at is None:
        return None
    if not is_active(steering.rule, state, rules):
        return "finished"  # what would be obeying is not known any more, and the next nudge must not wait for it
    rule = rules.by_name[steering.rule]
    assert isinstance(rule, GuardianRule)
    limit = call(rule, "ignored_after", rule.ignored_after, rules.thresholds[rule.name])
    return "ignored" if steering.repeats >= limit else None


def to_send_again(state: SandboxActivity, now: datetime) -> Steering | None:
    """A nudge that the message-relay did not accept in time: its command may have been lost with a monitor."""
    steering = state.steering
    if steering is None or steering.taken or steering.outcome is not None or state.ended:
        return None
    return steering if (now - steering.decided_at).total_seconds() >= RESEND_AFTER else None


def sent_again(state: SandboxActivity, now: datetime) -> SandboxActivity:
    """The state after it was sent again: `RESEND_AFTER` starts again."""
    return state if state.steering is None else replace(state, steering=replace(state.steering, decided_at=now))
