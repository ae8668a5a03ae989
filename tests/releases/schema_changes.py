"""Compares JSON Schemas: what one schema accepts and another does not. Pure functions.

Only the keywords that our schemas use are compared; any other raises `ValueError`, so that none is overlooked.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonschema

Schema = Mapping[str, Any]

_NOTES: Final = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$defs", "discriminator"})
_SAME: Final = {
    "pattern": "pattern",
    "format": "format",
    "contentEncoding": "encoding",
    "propertyNames": "names of fields",
}
"""Keywords whose values can't be compared, except for being the same."""
_MOST: Final = {"maximum": "maximum", "maxLength": "maximum length", "maxItems": "maximum of items",
                "maxProperties": "maximum of fields", "exclusiveMaximum": "maximum"}  # fmt: skip
_LEAST: Final = {"minimum": "minimum", "minLength": "minimum length", "minItems": "minimum of items",
                 "minProperties": "minimum of fields", "exclusiveMinimum": "minimum"}  # fmt: skip
_OTHERS: Final = frozenset({
    "type", "enum", "const", "anyOf", "oneOf", "$ref", "items", "uniqueItems", "properties", "required",
    "additionalProperties", "patternProperties",
})  # fmt: skip
KNOWN: Final = _NOTES | _SAME.keys() | _MOST.keys() | _LEAST.keys() | _OTHERS
_ANY: Final[Schema] = {}


@dataclass(frozen=True, order=True)
class Change:
    """A difference: the path of the field, and what the reader does not accept there."""

    field: str
    difference: str

    def __str__(self) -> str:
        return f"{self.field or 'the document'}: {self.difference}"


def not_accepted(reader: Schema, writer: Schema, *, ignores_unknown: bool) -> list[Change]:
    """What a reader with one schema would not accept of a writer with another; empty if it accepts everything.

    A field of the writer that the reader's schema lacks is a difference unless the reader ignores unknown fields.
    """
    return sorted(set(_Comparison(reader, writer, ignores_unknown=ignores_unknown).compare(reader, writer, "")))


class _Comparison:
    def __init__(self, reader: Schema, writer: Schema, *, ignores_unknown: bool) -> None:
        self._roots = reader, writer
        self._ignores_unknown = ignores_unknown
        self._seen: set[tuple[str, str]] = set()

    def compare(self, reader: Any, writer: Any, field: str) -> list[Change]:
        """The differences of two schemas of the same field."""
        pair = (
            str(reader.get("$ref") if isinstance(reader, dict) else ""),
            str(writer.get("$ref") if isinstance(writer, dict) else ""),
        )
        if all(ref.startswith("#") for ref in pair):  # a definition may contain itself
            if pair in self._seen:
                return []
            self._seen.add(pair)
        readers, writers = _alternatives(reader, self._roots[0]), _alternatives(writer, self._roots[1])
        return [change for one in writers for change in self._accepted_by_any(readers, one, field)]

    def _accepted_by_any(self, readers: list[Schema], writer: Schema, field: str) -> list[Change]:
        found: list[list[Change]] = []
        for reader in readers:
            seen = set(self._seen)
            found.append(list(self._differences(reader, writer, field)))
            if not found[-1]:
                return []
            self._seen = seen
        return min(
            found, key=lambda changes: (any(c.field == field and "type" in c.difference for c in changes), len(changes))
        )

    def _differences(self, reader: Schema, writer: Schema, field: str) -> Iterator[Change]:
        kinds, wanted = _types(reader), _types(writer)
        if kinds and not (
            wanted and all(kind in kinds or (kind == "integer" and "number" in kinds) for kind in wanted)
        ):
            yield Change(field, f"the type {' or '.join(sorted(wanted)) or 'any'}")
            return
        values = _values(writer)
        if values is not None:
            yield from (Change(field, f"the value {value!r}") for value in values if not _is_valid(reader, value))
            return
        if _values(reader) is not None:
            yield Change(field, "values that are not listed")
        yield from self._limits(reader, writer, field)
        if "items" in reader:
            yield from self.compare(reader["items"], writer.get("items", _ANY), f"{field}[]")
        yield from self._fields(reader, writer, field)

    def _limits(self, reader: Schema, writer: Schema, field: str) -> Iterator[Change]:
        for keyword, name in _SAME.items():
            if keyword in reader and reader[keyword] != writer.get(keyword):
                yield Change(field, f"another {name} than {reader[keyword]}")
        for keyword, name in _MOST.items():
            if keyword in reader and reader[keyword] < writer.get(keyword, float("inf")):
                yield Change(field, f"more than the {name} of {reader[keyword]}")
        for keyword, name in _LEAST.items():
            if keyword in reader and reader[keyword] > writer.get(keyword, float("-inf")):
                yield Change(field, f"less than the {name} of {reader[keyword]}")
        if reader.get("uniqueItems") and not writer.get("uniqueItems"):
            yield Change(field, "an item twice")

    def _fields(self, reader: Schema, writer: Schema, field: str) -> Iterator[Change]:
        given = writer.get("properties", _ANY)
        for name in sorted(set(reader.get("required", ())) - set(writer.get("required", ()))):
            yield Change(_inner(field, name), "its absence")
        for name, schema in given.items():
            known = _field_of(reader, name)
            if known is not None:
                yield from self.compare(known, schema, _inner(field, name))
            elif not self._ignores_unknown:
                yield Change(_inner(field, name), "this field")
        yield from self._further_fields(reader, writer, field)

    def _further_fields(self, reader: Schema, writer: Schema, field: str) -> Iterator[Change]:
        for pattern, schema in writer.get("patternProperties", _ANY).items():
            known = reader.get("patternProperties", _ANY).get(pattern, reader.get("additionalProperties", True))
            if known is False:
                yield Change(field, f"names of fields like {pattern}")
            else:
                yield from self.compare(known, schema, _inner(field, "*"))
        mine, theirs = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
        if mine is False and theirs is not False and not self._ignores_unknown:
            yield Change(field, "further fields")
        elif isinstance(mine, dict) and theirs is not False:
            yield from self.compare(mine, theirs, _inner(field, "*"))


def _inner(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _alternatives(schema: Any, root: Schema) -> list[Schema]:
    """The schemas without alternatives of which a value has to match one. Raises `ValueError` for other keywords."""
    if isinstance(schema, bool):
        return [_ANY] if schema else []
    unknown = schema.keys() - KNOWN
    if unknown:
        raise ValueError(f"the keyword {min(unknown)} can't be compared")
    if "$ref" in schema:
        return _alternatives(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options is None:
        return [schema]
    common = {name: value for name, value in schema.items() if name not in {"anyOf", "oneOf"}}
    return [_both(common, one) for option in options for one in _alternatives(option, root)]


def _both(common: Schema, option: Schema) -> Schema:
    """One alternative, with what all of them have in common."""
    merged = {**option, **common}
    if "properties" in common:
        merged["properties"] = {**option.get("properties", {}), **common["properties"]}
    if "required" in common or "required" in option:
        merged["required"] = [*common.get("required", ()), *option.get("required", ())]
    return merged


def _types(schema: Schema) -> set[str]:
    kinds = schema.get("type", [])
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    values = _values(schema)
    return found if found or values is None else {_type_of(value) for value in values}


def _type_of(value: Any) -> str:
    kinds: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null" if value is None else "object")


def _values(schema: Schema) -> list[Any] | None:
    """The values of a closed list; None if it has none."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _is_valid(schema: Schema, value: Any) -> bool:
    plain = {name: schema[name] for name in schema.keys() - {"$defs", "properties", "items"}}
    return jsonschema.Draft202012Validator(plain).is_valid(value)


def _field_of(schema: Schema, name: str) -> Any:
    """The schema of a field; None if there is none."""
    if name in schema.get("properties", _ANY):
        return schema["properties"][name]
    patterned = [one for pattern, one in schema.get("patternProperties", _ANY).items() if re.search(pattern, name)]
    further = schema.get("additionalProperties")
    return patterned[0] if patterned else further if isinstance(further, dict) else None
