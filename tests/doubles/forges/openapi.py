"""Compares requests and responses with an OpenAPI 3.0 document.

Schemas are read as JSON Schemas: `nullable` becomes the type null. A response may have no property that the document
does not describe, which is stricter than the document: a double's spelling mistakes are found.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.exceptions import relevance
from referencing import Registry
from referencing.jsonschema import DRAFT202012

_URI: Final = "urn:forge"
_LONG: Final = ("ref", "branch", "basehead", "head")
"""Parameters that may contain slashes."""
_FORMATS: Final = FormatChecker(formats=())
_SHOWN: Final = 300
_CONTAINERS: Final = ("allOf", "anyOf", "oneOf")


@_FORMATS.checks("date-time", raises=ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


@_FORMATS.checks("uri", raises=ValueError)
def _is_uri(value: object) -> bool:
    return not isinstance(value, str) or bool(urlsplit(value).scheme)


@dataclass(frozen=True)
class Mismatch:
    """A place at which a value differs from the document."""

    where: str
    message: str
    unknown: bool = False
    """Whether only the name is unknown to the document; forges ignore such names in requests."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class Operation:
    """A method of a path: its parameters, its request and its responses."""

    def __init__(self, document: "Document", template: str, method: str) -> None:
        self._document, self._described = document, document.paths[template][method]
        self.id: str = self._described["operationId"]
        self.method, self.template = method.upper(), template
        self._pattern = re.compile(_pattern(template))

    @property
    def order(self) -> int:
        """A sort key that puts the most specific template first."""
        return -len(re.sub(r"\{[^}]*\}", "", self.template))

    def match(self, method: str, raw_path: str) -> dict[str, str] | None:
        """The parameters of the path if it matches this operation, else None."""
        matched = self._pattern.fullmatch(raw_path) if method == self.method else None
        return {name: unquote(text) for name, text in matched.groupdict().items()} if matched else None

    @cached_property
    def parameters(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The parameters by place (`path`, `query`) and name."""
        every = (self._document.resolve(each) for each in self._described.get("parameters", []))
        return {(each["in"], each["name"]): each for each in every}

    @property
    def statuses(self) -> set[int]:
        """The documented statuses."""
        return {int(status) for status in self._described["responses"]}

    def mismatches_of_parameters(self, place: str, sent: Mapping[str, str]) -> list[Mismatch]:
        """Mismatches of the path or the query: unknown names, and values of another type."""
        found = []
        for name, text in sent.items():
            parameter = self.parameters.get((place, name))
            if parameter is None:
                found.append(Mismatch(name, f"is no parameter of the {place}", unknown=True))
            elif not self._document.accepts(parameter["schema"], text):
                found.append(Mismatch(name, f"{text!r} is no value of this parameter"))
        return found

    def mismatches_of_request(self, body: Any, *, present: bool) -> list[Mismatch]:
        """Mismatches of the request's body, which may be absent."""
        described = self._document.resolve(self._described.get("requestBody", {}))
        if not described:
            return [Mismatch("", "this operation takes no body")] if present else []
        if not present:
            return [Mismatch("", "this operation needs a body")] if described.get("required") else []
        return self._document.mismatches(described["content"]["application/json"]["schema"], body)

    def describes(self, status: int) -> bool:
        """Whether the document describes a body for this status, or does not know the status."""
        described = self._described["responses"].get(str(status))
        return described is None or "content" in self._document.resolve(described)

    def mismatches_of_response(self, status: int, body: Any, *, present: bool) -> list[Mismatch]:
        """Mismatches of a response with this status."""
        described = self._described["responses"].get(str(status))
        if described is None:
            return [Mismatch("status", f"{status} is not documented for {self.id}")]
        content = self._document.resolve(described).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if schema is None or not present:
            expected = schema is not None
            return [Mismatch("", "a body is documented, and sent none")] if expected and not present else []
        return self._document.mismatches(schema, body)


class Document:
    """An OpenAPI document, or the part of it that a double serves."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._whole = _json_schemas(document, frozenset(_joined(document)))
        registry: Registry[Any] = Registry().with_resource(_URI, DRAFT202012.create_resource(self._whole))
        self._registry = registry
        self.paths: dict[str, Any] = self._whole["paths"]
        every = [Operation(self, path, method) for path, methods in self.paths.items() for method in methods]
        self.operations = sorted(every, key=lambda one: one.order)
        self.by_id = {one.id: one for one in self.operations}
        self._validators: dict[int, Draft202012Validator] = {}

    def find(self, method: str, raw_path: str) -> tuple[Operation, dict[str, str]] | None:
        """The operation of a request, and the parameters of its path; None if it is not in the document."""
        for operation in self.operations:
            if (parameters := operation.match(method, raw_path)) is not None:
                return operation, parameters
        return None

    def resolve(self, node: dict[str, Any]) -> dict[str, Any]:
        """A node, or what it refers to."""
        while "$ref" in node:
            found: Any = self._whole
            for name in node["$ref"].removeprefix(f"{_URI}#/").split("/"):
                found = found[name]
            node = found
        return node

    def mismatches(self, schema: dict[str, Any], value: Any) -> list[Mismatch]:
        """The differences between a value and a schema."""
        return [_mismatch(one) for one in self._validator(schema).iter_errors(value)]

    def accepts(self, schema: dict[str, Any], text: str) -> bool:
        """Whether the text of a parameter is a value of its type."""
        values: list[Any] = [text]
        if re.fullmatch(r"-?\d+", text):
            values.append(int(text))
        if text in {"true", "false"}:
            values.append(text == "true")
        return any(not self.mismatches(schema, value) for value in values)

    def _validator(self, schema: dict[str, Any]) -> Draft202012Validator:
        """A validator of this schema object, which lives as long as the document."""
        if id(schema) not in self._validators:
            made = Draft202012Validator(schema, registry=self._registry, format_checker=_FORMATS)
            self._validators[id(schema)] = made
        return self._validators[id(schema)]


def _mismatch(error: ValidationError) -> Mismatch:
    """An error as a mismatch; if several schemas are possible, the mismatch of the one that fits best."""
    while error.context:
        error = min(error.context, key=relevance)
    return Mismatch(error.json_path, error.message[:_SHOWN], error.validator == "additionalProperties")


def _pattern(template: str) -> str:
    pieces = re.split(r"\{([^}]*)\}", template)
    names = pieces[1::2]
    made = [re.escape(pieces[0])]
    for name, literal in zip(names, pieces[2::2], strict=True):
        made.append(f"(?P<{name}>{'.+' if name in _LONG else '[^/]+'})" + re.escape(literal))
    return "".join(made)


def _json_schemas(node: Any, joined: frozenset[str], reference: str = "#", *, whole: bool = True) -> Any:
    """The document with JSON Schemas, whose objects have the described properties only (`whole`).

    `joined` are the schemas that an `allOf` refers to: the others of the same `allOf` describe more properties.
    """
    if isinstance(node, list):
        return [_json_schemas(each, joined, f"{reference}/-", whole=whole) for each in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("$ref"), str):
        return {"$ref": _URI + node["$ref"]}
    whole = whole and reference not in joined
    made = {
        name: _json_schemas(each, joined, f"{reference}/{name}", whole=whole and name != "allOf")
        for name, each in node.items()
    }
    if _is_object_schema(node) and whole:
        made.setdefault("additionalProperties", False)
    if isinstance(node.get("allOf"), list) and whole:
        made.setdefault("unevaluatedProperties", False)
    return _with_null(made) if made.pop("nullable", False) is True else made


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(schema.get("type"), str):
        return {"anyOf": [schema, {"type": "null"}]}
    known = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **known}


def _joined(node: Any) -> Iterator[str]:
    """The schemas that an `allOf` refers to."""
    if isinstance(node, dict):
        if isinstance(parts := node.get("allOf"), list):
            yield from (part["$ref"] for part in parts if "$ref" in part)
        for each in node.values():
            yield from _joined(each)
    elif isinstance(node, list):
        for each in node:
            yield from _joined(each)


def _is_object_schema(node: dict[str, Any]) -> bool:
    described = isinstance(node.get("properties"), dict) and node.get("type") == "object"
    return described and not any(name in node for name in _CONTAINERS)
