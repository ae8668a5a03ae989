"""Evaluates rules for one sandbox. A rule that fails affects neither other rules nor other sandboxes. Pure.

A rule that raises an error is disabled for that sandbox. The error stays in the sandbox's state until the sandbox ends.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import PurePath
from traceback import extract_tb
from typing import Any, TypeVar

from monitor.facts import Observation
from monitor.rule_set import ActiveRule, FoundT, RuleSet
from monitor.rules.rule import AnyGuardianRule, AnyRule, GuardianRule, Pattern
from monitor.sandbox_state import MAX_CITED, NONE_ASSESSED, SandboxActivity, Steering
from sandherd.contracts.events.monitor import SteeringStep

ResultT = TypeVar("ResultT")


class RuleFailedError(Exception):
    """A rule has raised an error. `reason` has the class of the error, and the file and line, for users."""

    def __init__(self, rule: str, operation: str, error: Exception) -> None:
        last = extract_tb(error.__traceback__)[-1]
        self.rule = rule
        # The text of the error is omitted, because it may contain what a sandbox has published.
        self.reason = f"{operation}: {type(error).__name__} ({PurePath(last.filename).name}:{last.lineno})"
        super().__init__(f"{rule}: {self.reason}")


def after_observation(state: SandboxActivity, observation: Observation, rules: RuleSet, number: int) -> SandboxActivity:
    """The state after each rule that reads the observation has folded it into its part.

    `number` is the stream sequence of the last event.
    """
    folding = rules.rules_folding(observation.event.type, ends_call=observation.call is not None)
    if not folding:
        return state.changed(number=number)
    parts, disabled, steering = dict(state.parts), state.disabled, state.steering
    has_data = observation.event.data is not None
    for active in folding:
        name = active.name
        if (disabled and name in disabled) or not (has_data or active.rule.folds_output):
            continue
        try:
            earlier_part = parts.get(name, active.new_part)
            part = active.rule.fold(earlier_part, observation, state)
            if steering is not None and steering.watched == name:
                steering = _steering_after(steering, active.rule, part, observation, state.turn)
            if part is not earlier_part:
                parts[name] = part
        except Exception as error:  # noqa: BLE001  # whatever it raises, it must not stop the watch of all sandboxes
            disabled = {**disabled, name: RuleFailedError(name, "fold", error).reason}
            parts.pop(name, None)
    return state.changed(number=number, parts=parts, disabled=disabled, steering=steering)


def new_episode(state: SandboxActivity, rules: RuleSet, at: datetime) -> SandboxActivity:
    """The state after a message of a user, which begins an episode.

    The rules no longer count what the agent did before.
    """
    parts = {name: part for name, part in state.parts.items() if name not in rules.reset_in_new_episode}
    return state.changed(parts=parts, episode_at=at, assessed=NONE_ASSESSED)


def first_finding(
    rules: Iterable[ActiveRule[FoundT]], state: SandboxActivity, now: datetime
) -> tuple[AnyRule, FoundT] | None:
    """The first of these rules with a finding, and its finding. Raises `RuleFailedError`."""
    parts, disabled, muted, active = state.parts, state.disabled, state.muted, None
    try:
        for active in rules:
            if (disabled and active.name in disabled) or (muted and is_muted(state, active.name, now)):
                continue
            part = parts.get(active.name, active.new_part) if parts else active.new_part
            result = active.evaluate(part, state, now, active.thresholds)
            if result is not None:
                return active.rule, result
    except Exception as error:  # whatever it raises, the caller disables the rule, and nothing else stops
        assert active is not None
        raise RuleFailedError(active.name, "decision", error) from error
    return None


def is_muted(state: SandboxActivity, name: str, now: datetime) -> bool:
    """Whether a user has muted this rule for this sandbox."""
    if name not in state.muted:
        return False
    until = state.muted[name]
    return until is None or now < until


def is_active(name: str, state: SandboxActivity, rules: RuleSet) -> bool:
    """Whether a guardian rule is evaluated for this sandbox: it exists, is not off, and has not failed."""
    return isinstance(rules.by_name.get(name), GuardianRule) and name not in state.disabled


def current_pattern(name: str, state: SandboxActivity, rules: RuleSet) -> Pattern | None:
    """The pattern that an active guardian rule sees at present, even below its thresholds. Raises `RuleFailedError`."""
    rule = rules.by_name[name]
    assert isinstance(rule, GuardianRule)
    return call(rule, "pattern", rule.pattern, part_of(state, rule, rules))


def reached_step(rule: AnyGuardianRule, pattern: Pattern, rules: RuleSet) -> SteeringStep | None:
    """The highest step whose threshold a pattern's count reaches. None if it reaches none. Raises `RuleFailedError`."""
    return call(rule, "step", rule.step, pattern, rules.thresholds[rule.name])


def call(rule: AnyRule, operation: str, method: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Call a method of a rule. Raises `RuleFailedError` if the method raises an error."""
    try:
        return method(*arguments)
    except Exception as error:  # whatever it raises, the caller disables the rule, and nothing else stops
        raise RuleFailedError(rule.name, operation, error) from error


def without_rule(state: SandboxActivity, failure: RuleFailedError) -> SandboxActivity:
    """The state without the rule that failed."""
    parts = {name: part for name, part in state.parts.items() if name != failure.rule}
    return state.changed(parts=parts, disabled={**state.disabled, failure.rule: failure.reason})


def part_of(state: SandboxActivity, rule: AnyRule, rules: RuleSet) -> Any:
    """The rule's part of the state. A new part if the rule has folded nothing yet; None for a rule without a part."""
    part = state.parts.get(rule.name)
    return rules.new_parts.get(rule.name) if part is None else part


def _steering_after(steering: Steering, rule: AnyRule, part: Any, observation: Observation, turn: int) -> Steering:
    """The intervention after an observation, with the repetitions that its rule recognises in it.

    The intervention is unchanged before the agent has received it, and once it has an outcome.
    """
    if not isinstance(rule, GuardianRule) or steering.received_at is None or steering.outcome is not None:
        return steering
    repeated = rule.is_repeated(steering.pattern, part, observation)
    if repeated is None:
        return steering
    if not repeated:
        return replace(steering, others=steering.others + 1)
    event_ids = (observation.event.id,) if observation.event.id else ()
    cited = (*steering.repeated, *event_ids)[-MAX_CITED:]
    return replace(steering, repeats=steering.repeats + 1, others=0, clear_turn=turn, repeated=cited)
