"""Decides whether an event requires an action immediately, instead of at the next check. Pure."""

from collections.abc import Iterable

from monitor import guardian
from monitor.evaluation import first_finding
from monitor.facts import ObservedEvent
from monitor.rule_set import ActiveRule, RuleSet
from monitor.rules.rule import Finding, Pattern
from monitor.sandbox_state import SandboxActivity


def is_urgent(before: SandboxActivity | None, state: SandboxActivity, event: ObservedEvent, rules: RuleSet) -> bool:
    """Whether an outcome is known, a command is to be sent, or a prompt rule finds something. Raises `RuleFailedError`.

    After an event of the agent only the prompt rules are evaluated whose part it has changed. Other events, such as a
    resume or an outcome, may permit an intervention that was not permitted before, so all prompt rules are evaluated.
    """
    if state.steering is not None and guardian.outcome(state, rules) is not None:
        return True
    if guardian.command_to_send(state, state.last_sign_at) is not None:
        return True
    prompt_rules: Iterable[ActiveRule[Finding | Pattern]] = rules.prompt_rules
    if before is not None and event.is_of_agent:
        parts, before_parts = state.parts, before.parts
        candidates = rules.prompt_rules_after(event.type)
        prompt_rules = [rule for rule in candidates if parts.get(rule.name) is not before_parts.get(rule.name)]
    return first_finding(prompt_rules, state, state.last_sign_at) is not None
