"""Describes a field that a contract does not accept: one plain sentence with the permitted range."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from sandherd.contracts.validation_texts import PLAIN

_MINIMUM: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MAXIMUM: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LENGTHS: Final = {"string_too_short": "characters", "string_too_long": "characters", "too_long": "items"}
_NUMBERS: Final = frozenset({"less_than", "less_than_equal", "greater_than", "greater_than_equal"})


@dataclass(frozen=True)
class Violation:
    """An error in a field: its type, as pydantic names it, and the permitted range if the field has limits."""

    kind: str
    minimum: float | None
    maximum: float | None
    unit: str = ""
    """The unit of a length; empty for a number."""

    @property
    def is_number(self) -> bool:
        """Whether the field is a number outside its range."""
        return self.kind in _NUMBERS


def violation_of(error: ValidationError, model: type[BaseModel]) -> Violation:
    """The violation for the first error that pydantic found in a model."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    minimum, maximum = _limits(_schema(model), first["loc"])
    return Violation(first["type"], minimum, maximum, _LENGTHS.get(first["type"], ""))


@lru_cache(maxsize=64)
def _schema(model: type[BaseModel]) -> Mapping[str, Any]:
    """The JSON Schema of a model. It is cached: building it takes longer than checking thousands of fields."""
    return model.model_json_schema()


def sentence(violation: Violation) -> str | None:
    """What the field has to be, as the end of a sentence about it; None for types of errors without a text."""
    if violation.unit and violation.kind == "string_too_short" and violation.minimum == 1:
        return "must not be empty"
    if violation.is_number or violation.unit:
        unit = f" {violation.unit}" if violation.unit else ""
        verb = "has to have" if unit else "has to be"
        return f"{verb} {permitted(violation.minimum, violation.maximum)}{unit}"
    return PLAIN.get(violation.kind)


def permitted(minimum: Any, maximum: Any) -> str:
    """A range in words, from a minimum and a maximum. One of them may be None."""
    if minimum is None:
        return f"at most {maximum}"
    return f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"


def _limits(schema: Mapping[str, Any], path: tuple[int | str, ...]) -> tuple[float | None, float | None]:
    """The minimum and maximum of a field in its model's JSON Schema; of several alternatives, the first one counts."""
    nodes = [schema]
    for part in path:
        known = [place for node in nodes for place in _places(node, schema)]
        nodes = [place["properties"][part] for place in known if part in place.get("properties", {})] or nodes
    places = [place for node in nodes for place in _places(node, schema)]
    return _first_value(places, _MINIMUM), _first_value(places, _MAXIMUM)


def _places(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The node and its alternatives, with references resolved."""
    if reference := node.get("$ref"):
        yield from _places(schema["$defs"][reference.rpartition("/")[2]], schema)
        return
    yield node
    for other in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _places(other, schema)


def _first_value(places: list[Mapping[str, Any]], names: tuple[str, ...]) -> float | None:
    return next((place[name] for place in places for name in names if name in place), None)
