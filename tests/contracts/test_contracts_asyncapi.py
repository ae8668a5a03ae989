"""The AsyncAPI document is complete: it has every subject, and all of its references resolve."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
from faststream.specification.asyncapi.v3_0_0.schema import ApplicationSchema

from sandherd.contracts import asyncapi
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.field_meanings import MEANINGS
from sandherd.contracts.monitor_rules import RULES
from sandherd.contracts.schemas import json_schemas, published_models
from sandherd.contracts.subjects import TABLE, Subject


@cache
def document() -> dict[str, Any]:
    """Created when a test uses it, so that collecting tests does not wait for it."""
    return asyncapi.document()


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for item in part.values():
            yield from references(item)
    elif isinstance(part, list):
        for item in part:
            yield from references(item)


def found(pointer: str) -> Any:
    """The target of a JSON pointer. Raises `KeyError` if there is none."""
    part: Any = document()
    for token in pointer.removeprefix("#/").split("/"):
        part = part[token]
    return part


def test_every_reference_resolves() -> None:
    """No `$ref` in the document points to nothing."""
    pointers = set(references(document()))
    assert pointers
    for pointer in pointers:
        assert found(pointer)


def test_document_is_valid_asyncapi() -> None:
    """FastStream's own model of AsyncAPI 3.0 reads the document."""
    assert ApplicationSchema.model_validate(document()).asyncapi == "3.0.0"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_subject_is_a_channel(row: Subject) -> None:
    """Each row of the table is a channel, with its address, its parameters, and at least one message."""
    channel = document()["channels"][row.name]
    assert channel["address"] == row.template
    assert set(channel["parameters"]) == set(re.findall(r"{(\w+)}", row.template))
    assert channel["messages"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_principal_has_its_operations(row: Subject) -> None:
    """A principal with access to a subject has an operation for it, and no other has."""
    senders = {name.split(".", 2)[0] for name in document()["operations"] if name.endswith(f".send.{row.name}")}
    receivers = {name.split(".", 2)[0] for name in document()["operations"] if name.endswith(f".receive.{row.name}")}
    assert senders == {principal.value for principal in row.producers}
    assert receivers == {principal.value for principal in row.consumers}


def test_every_message_is_carried_by_a_channel() -> None:
    """A subject carries each described message, and every published model except the problem is a message."""
    carried = {name for channel in document()["channels"].values() for name in channel["messages"]}
    assert carried | {"problem"} == set(document()["components"]["messages"])
    assert set(published_models()) <= carried | {"problem"}


def test_operation_names_messages_of_its_channel() -> None:
    """An operation's messages, and its reply's, are messages of the channels it names (AsyncAPI 3.0)."""
    for operation in document()["operations"].values():
        for part in (operation, *([operation["reply"]] if "reply" in operation else [])):
            assert all(ref["$ref"].startswith(f"{part['channel']['$ref']}/messages/") for ref in part["messages"])


def test_every_schema_is_valid() -> None:
    """Each document is a valid JSON Schema of draft 2020-12, with the URN that `dataschema` gives."""
    schemas = json_schemas()
    assert schemas
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"urn:sandherd:v1:{name}"


def test_document_is_deterministic() -> None:
    """Two generated documents are equal, in the same order."""
    assert repr(asyncapi.document()) == repr(asyncapi.document())


def test_every_field_of_every_event_is_described() -> None:
    """Every field has a description in its JSON Schema, and no description belongs to no field."""
    schemas = json_schemas()
    fields = {(name, field): part for name in EVENTS for field, part in schemas[name].get("properties", {}).items()}
    assert len(fields) > 500
    assert [key for key, part in fields.items() if not part.get("description", "").strip()] == []
    texts = {part["description"] for part in fields.values()}
    assert {name for name, text in MEANINGS.items() if text not in texts} == set()


def test_the_field_of_a_rule_lists_every_rule() -> None:
    """In the schema of each event that names a rule the field lists every rule, including added ones."""
    schemas = json_schemas()
    naming = [name for name, model in EVENTS.items() if "rule" in model.model_fields]
    found = [schemas[name]["properties"]["rule"]["description"] for name in naming]
    assert len(found) > 5
    assert {text for text in found for row in RULES if f"`{row.name}`" not in text} == set()
