"""The names of the rules by their kind, and sets of all rules with other thresholds or another ladder."""

from typing import Final

from monitor.rule_set import ALL, RuleSet
from monitor.rules.registry import RULES
from monitor.rules.rule import GuardianRule, HousekeepingRule
from sandherd.contracts.events.monitor import SteeringStep

HOUSEKEEPING: Final = [rule.name for rule in RULES if isinstance(rule, HousekeepingRule)]
GUARDIAN: Final = [rule.name for rule in RULES if isinstance(rule, GuardianRule)]


def with_thresholds(rule: str, **values: float) -> RuleSet:
    """All rules, with other thresholds of one rule."""
    return RuleSet(thresholds={rule: ALL.thresholds[rule].model_copy(update=values)})


def with_ladder(max_step: SteeringStep, cooldown: float = ALL.steering_cooldown) -> RuleSet:
    """All rules, with another strongest step, and another cool-down in seconds."""
    return RuleSet(steering_cooldown=cooldown, max_step=max_step)
