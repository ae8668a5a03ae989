"""The rules that the settings select, and their thresholds."""

from typing import Any

from monitor.rule_set import OFF, RuleSet
from monitor.rules import registry
from monitor.rules.rule import AnyRule, SettingReference, Thresholds
from sandherd.settings import Settings


def rule_set_of(settings: Settings) -> RuleSet:
    """The rules that are not off, with their thresholds.

    A threshold comes from the setting `rules`, else from a separate setting of that threshold, else from its default.
    """
    settings_by_rule = settings.rules
    rules = [rule for rule in registry.RULES if settings_by_rule.get(rule.name) != OFF]
    thresholds = {rule.name: _thresholds(rule, settings) for rule in rules}
    return RuleSet(
        rules,
        thresholds,
        steering_cooldown=settings.steering_cooldown,
        max_step=settings.max_intervention,
        assesses=settings.assessor_model is not None,
    )


def _thresholds(rule: AnyRule, settings: Settings) -> Thresholds:
    values: dict[str, Any] = {
        name: getattr(settings, reference.name) * reference.factor
        for name, field in rule.thresholds.model_fields.items()
        for reference in field.metadata
        if isinstance(reference, SettingReference)
    }
    rule_setting = settings.rules.get(rule.name, {})
    return rule.thresholds(**values | (rule_setting if isinstance(rule_setting, dict) else {}))
