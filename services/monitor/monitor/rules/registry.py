"""Finds the rules. Each other module of this package has one, as `RULE`, whose name is that of the module."""

import dataclasses
import pkgutil
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final, get_args

from pydantic.fields import FieldInfo

import monitor.rules as rules_package
from monitor.rules.rule import AnyGuardianRule, AnyRule, GuardianRule, HousekeepingRule, Unit
from sandherd.contracts.events.monitor import SteeringStep

_MODULES_WITHOUT_RULE: Final = frozenset({"registry", "rule"})
_RULE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{1,39}")


class InvalidRuleError(Exception):
    """A module of the package has no rule, or an invalid one. The message describes the problem."""


def load_rules() -> tuple[AnyRule, ...]:
    """All rules, in the order of their evaluation. Raises `InvalidRuleError`."""
    names = sorted(
        module.name
        for module in pkgutil.iter_modules(rules_package.__path__)
        if module.name not in _MODULES_WITHOUT_RULE
    )
    rules = [_rule_of(name) for name in names]
    if texts := list(problems(rules)):
        raise InvalidRuleError("; ".join(texts))
    return tuple(sorted(rules, key=lambda rule: rule.order))


def _rule_of(name: str) -> AnyRule:
    rule = getattr(import_module(f"{rules_package.__name__}.{name}"), "RULE", None)
    if not isinstance(rule, HousekeepingRule | GuardianRule):
        raise InvalidRuleError(f"{rules_package.__name__}.{name} has no RULE")
    if rule.name != name:
        raise InvalidRuleError(f"{rules_package.__name__}.{name} has the rule {rule.name!r}: name both the same")
    return rule


def problems(rules: Sequence[AnyRule]) -> Iterator[str]:
    """A text for each problem of these rules."""
    for attribute in ("name", "order"):
        values = [getattr(rule, attribute) for rule in rules]
        yield from (f"two rules have the {attribute} {value}" for value in {*values} if values.count(value) > 1)
    for rule in rules:
        yield from (f"{rule.name}: {text}" for text in _problems_of(rule))


def _problems_of(rule: AnyRule) -> Iterator[str]:
    if not _RULE_NAME.fullmatch(rule.name):
        yield "a name has small letters, digits and underscores"
    if not _is_frozen(type(rule)):
        yield "it is not a frozen dataclass"
    if rule.part is not None and not _is_frozen(rule.part):
        yield "its part is not a frozen dataclass"
    if rule.part is not None and any(not _has_default(field) for field in dataclasses.fields(rule.part)):
        yield "its part has a field without a default"
    if bool(rule.reads or rule.folds_calls or rule.folds_output) != (rule.part is not None):
        yield "a rule has a part if it folds something, and only then"
    yield from (
        text for name, field in rule.thresholds.model_fields.items() for text in _problems_of_threshold(name, field)
    )
    if isinstance(rule, GuardianRule):
        yield from _problems_of_steps(rule)


def _problems_of_steps(rule: AnyGuardianRule) -> Iterator[str]:
    names = [step for step in get_args(SteeringStep) if step in rule.steps]
    if not names or names != list(rule.steps):
        yield f"its steps are not some of {', '.join(get_args(SteeringStep))}, in that order"
    yield from (
        f"there is no threshold {threshold}"
        for threshold in rule.steps.values()
        if threshold not in rule.thresholds.model_fields
    )


def _problems_of_threshold(name: str, field: FieldInfo) -> Iterator[str]:
    if field.is_required() or field.annotation not in {int, float}:
        yield f"the threshold {name} is not a number with a default"
    if not any(isinstance(item, Unit) for item in field.metadata):
        yield f"the threshold {name} has no unit"


def _is_frozen(kind: type[Any]) -> bool:
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]  # not in its stubs


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return not (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)


RULES: Final = load_rules()
