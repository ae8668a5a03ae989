"""The setting with the thresholds of the monitor's rules. The table of rules validates it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, WithJsonSchema

from sandherd.contracts.monitor_rules import GUARDIAN, RULES
from sandherd.contracts.rule_table import RuleRow, ThresholdRow

OFF: Final = "off"
_ROW_BY_RULE: Final = {row.name: row for row in RULES}


def read_rules(value: Any) -> dict[str, Any]:
    """For each rule its thresholds, or `off`, from a mapping or from a list such as `loop.repeats=5,cycle=off`.

    Raises `ValueError`, which names the valid rules or thresholds.
    """
    entries = _from_list(value) if isinstance(value, str | list | tuple) else value
    if not isinstance(entries, Mapping):
        raise ValueError("it has to be thresholds by rule, or a list of rule.threshold=value")  # noqa: TRY004  # for pydantic
    return {str(name): _validated_choice(_row(str(name)), chosen) for name, chosen in entries.items()}


def _from_list(value: str | Iterable[object]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for text in value.split(",") if isinstance(value, str) else map(str, value):
        key, equals, number = text.partition("=")
        rule, dot, threshold = key.strip().partition(".")
        if not equals or (not dot and number.strip() != OFF):
            raise ValueError("an entry of the list is rule.threshold=value, or rule=off")
        if entries.get(rule) == OFF or (not dot and rule in entries):
            raise ValueError(f"{rule} is off, and has a threshold")
        if not dot:
            entries[rule] = OFF
        else:
            entries.setdefault(rule, {})[threshold] = number.strip()
    return entries


def _row(name: str) -> RuleRow:
    if name not in _ROW_BY_RULE:
        raise ValueError(f"there is no such rule; the rules are {', '.join(_ROW_BY_RULE)}")
    return _ROW_BY_RULE[name]


def _validated_choice(rule: RuleRow, chosen: Any) -> Any:
    # YAML reads `off` as false. The number 0, which equals False, is not `off`.
    if (chosen in (OFF, False) and not isinstance(chosen, int | float)) or chosen is False:
        if rule.kind != "guardian":
            raise ValueError(f"{rule.name} can't be off; these can: {', '.join(GUARDIAN)}")
        return OFF
    if not isinstance(chosen, Mapping):
        raise ValueError(f"{rule.name} has to be thresholds, or off")  # noqa: TRY004  # for pydantic
    return {str(name): _number(rule, str(name), value) for name, value in chosen.items()}


def _number(rule: RuleRow, name: str, value: Any) -> float:
    row = next((threshold for threshold in rule.thresholds if threshold.name == name), None)
    if row is None:
        valid = ", ".join(threshold.name for threshold in rule.thresholds) or "none"
        raise ValueError(f"{rule.name} has no such threshold; it has: {valid}")
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not row.admits(number):
        kind = "an integer" if row.whole else "a number"
        raise ValueError(f"{rule.name}.{name} has to be {' '.join(filter(None, (kind, row.bounds)))}")
    return int(number) if row.whole else number


def schema() -> dict[str, Any]:
    """The JSON Schema of the mapping that `read_rules` accepts."""
    return {"type": "object", "additionalProperties": False, "properties": {row.name: _schema_of(row) for row in RULES}}


def _schema_of(rule: RuleRow) -> dict[str, Any]:
    properties = {threshold.name: _schema_of_number(threshold) for threshold in rule.thresholds}
    thresholds = {"type": "object", "additionalProperties": False, "properties": properties}
    return {"anyOf": [thresholds, {"enum": [OFF, False]}]} if rule.kind == "guardian" else thresholds


def _schema_of_number(row: ThresholdRow) -> dict[str, Any]:
    limits = {"minimum": row.minimum, "exclusiveMinimum": row.above, "maximum": row.maximum}
    bounds = {name: limit for name, limit in limits.items() if limit is not None}
    return {"description": row.meaning, "type": "integer" if row.whole else "number", **bounds}


RuleSettings = Annotated[
    dict[str, dict[str, float] | Literal["off"]], BeforeValidator(read_rules), WithJsonSchema(schema())
]
"""Thresholds of the monitor's rules, by rule; `off` for a guardian rule that is not evaluated."""
