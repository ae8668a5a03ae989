"""The intervention ladder: determines the step against a pattern. Pure.

No step is skipped: the first intervention against a pattern is its rule's first step, and the next step follows only if
the agent has ignored the one before. A step above the maximum is lowered to it. The maximum is that of the sandbox, or
else that of the herd.
"""

from typing import Final, get_args

from monitor import evaluation
from monitor.rule_set import RuleSet
from monitor.rules.rule import AnyGuardianRule, GuardianRule, Pattern
from monitor.sandbox_state import Intervention, SandboxActivity
from sandherd.contracts.events.monitor import SteeringStep

STEPS: Final[tuple[SteeringStep, ...]] = get_args(SteeringStep)
"""All steps, weakest first."""
_SUCCESSFUL_OUTCOMES: Final = frozenset({"obeyed", "recovered"})


def rank(step: SteeringStep) -> int:
    """The position of a step among all steps. A stronger step has a higher one."""
    return STEPS.index(step)


def maximum_step(state: SandboxActivity, rules: RuleSet) -> SteeringStep:
    """The strongest step that is permitted for this sandbox."""
    return state.max_step or rules.max_step


def due_step(state: SandboxActivity, rule: AnyGuardianRule, pattern: Pattern, rules: RuleSet) -> SteeringStep | None:
    """The step that a pattern leads to, before it is lowered to the maximum; None if it leads to none.

    Raises `RuleFailedError`.
    """
    reached = evaluation.reached_step(rule, pattern, rules)
    if reached is None:
        return None
    watched = rules.by_name.get(pattern.watched or rule.name)
    steps = tuple(watched.steps) if isinstance(watched, GuardianRule) else tuple(rule.steps)
    last = last_against(state, pattern)
    if pattern.watched:
        return _after_ignored(steps, last)
    if last is None:
        return _weaker(reached, _first_step(steps))
    stronger = [step for step in steps if rank(step) > rank(last.step)]
    earlier = [step for step in steps if rank(step) <= rank(last.step)]
    allowed = stronger[0] if stronger and last.outcome == "ignored" else (earlier or list(steps))[-1 if earlier else 0]
    return _weaker(reached, allowed)


def permitted_step(rule: AnyGuardianRule, step: SteeringStep, highest: SteeringStep) -> SteeringStep:
    """The step, lowered to the maximum `highest`.

    A rule whose first step exceeds the maximum sends a nudge, unless a nudge exceeds it, too.
    """
    if rank(step) <= rank(highest) or highest == "observe":
        return step if rank(step) <= rank(highest) else "observe"
    permitted = [candidate for candidate in rule.steps if rank(candidate) <= rank(highest) and candidate != "observe"]
    return permitted[-1] if permitted else "nudge"


def last_against(state: SandboxActivity, pattern: Pattern) -> Intervention | None:
    """The last intervention against a pattern in this episode; None if there is none, or if the agent has obeyed it."""
    watched = pattern.watched or pattern.rule
    for intervention in reversed(state.interventions):
        if (intervention.watched, intervention.pattern) == (watched, pattern.key):
            is_earlier_episode = state.episode_at is not None and intervention.decided_at < state.episode_at
            return None if is_earlier_episode or intervention.outcome in _SUCCESSFUL_OUTCOMES else intervention
    return None


def _after_ignored(steps: tuple[SteeringStep, ...], last: Intervention | None) -> SteeringStep | None:
    """The step after the last intervention, if that was ignored."""
    if last is None or last.outcome != "ignored":
        return None
    return next((step for step in steps if rank(step) > rank(last.step)), None)


def _first_step(steps: tuple[SteeringStep, ...]) -> SteeringStep:
    return next((step for step in steps if step != "observe"), steps[0])


def _weaker(step: SteeringStep, other: SteeringStep) -> SteeringStep:
    return step if rank(step) <= rank(other) else other
