"""Schemas that are incompatible with the last release are found, in the direction that matters for each kind."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.schemas import json_schemas
from tests.releases.release_record import SCHEMAS, last_release, lines_of, schemas_of
from tests.releases.schema_changes import not_accepted
from tests.releases.schema_policy import breaks, problems, released_schemas

ROOT = Path(__file__).parents[2]
EVENT, COMMAND, REPLY = "task.failed", "spawner.submit_task", "spawner.tasks.reply"
BASE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "kind": {"enum": ["a", "b"], "type": "string"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "cost": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "part": {"$ref": "#/$defs/Part"},
    },
    "required": ["name"],
    "$defs": {"Part": {"type": "object", "properties": {"size": {"type": "integer"}, "of": {"$ref": "#/$defs/Part"}}}},
}
Edit = Callable[[Any], object]
NARROWER: dict[str, tuple[Edit, str]] = {
    "pattern": (lambda s: s["properties"]["name"].update(pattern="^a"), "name"),
    "format": (lambda s: s["properties"]["name"].update(format="uuid"), "name"),
    "maximum length": (lambda s: s["properties"]["name"].update(maxLength=8), "name"),
    "minimum length": (lambda s: s["properties"]["name"].update(minLength=1), "name"),
    "enum": (lambda s: s["properties"]["kind"].update(enum=["a"]), "kind"),
    "text becomes an enum": (lambda s: s["properties"]["name"].update(enum=["a"]), "name"),
    "constant": (lambda s: s["properties"]["name"].update(const="a"), "name"),
    "maximum": (lambda s: s["properties"]["count"].update(maximum=8), "count"),
    "a first maximum": (lambda s: s["properties"]["cost"].update(maximum=8), "cost"),
    "minimum": (lambda s: s["properties"]["count"].update(minimum=2), "count"),
    "whole numbers": (lambda s: s["properties"]["cost"].update(type="integer"), "cost"),
    "items": (lambda s: s["properties"]["tags"].update(maxItems=2), "tags"),
    "different items": (lambda s: s["properties"]["tags"].update(uniqueItems=True), "tags"),
    "type of items": (lambda s: s["properties"]["tags"]["items"].update(pattern="^a"), "tags[]"),
    "values": (lambda s: s["properties"]["env"]["additionalProperties"].update(maxLength=5), "env.*"),
    "names": (lambda s: s["properties"]["env"].update(propertyNames={"pattern": "^A"}), "env"),
    "null": (lambda s: s["properties"].update(note={"type": "string"}), "note"),
    "newly required": (lambda s: s["required"].append("count"), "count"),
    "within a definition": (lambda s: s["$defs"]["Part"]["properties"]["size"].update(maximum=1), "part.size"),
    "no further fields": (lambda s: s.update(additionalProperties=False), ""),
}
"""Edits of a schema that make it narrower, and the field that is reported."""


def edited(schema: Any, edit: Edit) -> Any:
    changed = copy.deepcopy(schema)
    edit(changed)
    return changed


@pytest.mark.parametrize("name", NARROWER)
def test_each_narrowing_is_found_in_its_direction(name: str) -> None:
    """The narrower schema does not accept what the wider one permits; the wider one accepts all of the narrower."""
    edit, field = NARROWER[name]
    narrower = edited(BASE, edit)
    assert [change.field for change in not_accepted(narrower, BASE, ignores_unknown=False)] == [field]
    assert not_accepted(BASE, narrower, ignores_unknown=False) == []


def test_a_schema_accepts_itself() -> None:
    """Each of today's schemas is compatible with itself."""
    for schema in (BASE, *json_schemas().values()):
        assert not_accepted(schema, schema, ignores_unknown=False) == []


def test_a_removed_field_is_found_and_an_added_one_is_permitted() -> None:
    """Readers ignore unknown fields, so an added field is no difference; a field that is not known any more is one."""
    smaller = edited(BASE, lambda s: s["properties"].pop("count"))
    assert [change.field for change in not_accepted(smaller, BASE, ignores_unknown=False)] == ["count"]
    assert not_accepted(smaller, BASE, ignores_unknown=True) == []


def test_another_type_is_found_in_both_directions() -> None:
    """A text is no number, and a number is no text."""
    other = edited(BASE, lambda s: s["properties"].update(name={"type": "integer"}))
    for reader, writer in ((BASE, other), (other, BASE)):
        assert [change.field for change in not_accepted(reader, writer, ignores_unknown=True)] == ["name"]


def test_an_unknown_keyword_is_an_error() -> None:
    """A keyword that is not compared would hide a difference."""
    with pytest.raises(ValueError, match="dependentRequired"):
        not_accepted(edited(BASE, lambda s: s.update(dependentRequired={})), BASE, ignores_unknown=False)


def today_with(name: str, edit: Edit) -> list[str]:
    """The problems if today's schema of this name was edited."""
    schemas = dict(json_schemas())
    return problems(released_schemas(), schemas | {name: edited(schemas[name], edit)})


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        (EVENT, lambda s: s["properties"]["error_type"].update(pattern="^[a-z]+$")),
        (EVENT, lambda s: s["properties"].pop("error_type")),
        (EVENT, lambda s: s["required"].append("sandbox")),
        (EVENT, lambda s: s["required"].remove("error")),
        (EVENT, lambda s: s["properties"].update(error={"type": ["string", "null"]})),
        ("agent.failed", lambda s: s["properties"]["error_type"]["enum"].append("tired")),
        ("agent.failed", lambda s: s["properties"]["turns"].update(maximum=10)),
        (COMMAND, lambda s: s["properties"]["task"].update(maxLength=20)),
        (COMMAND, lambda s: s["required"].append("submitted_by")),
        (COMMAND, lambda s: s["properties"].pop("submitted_by")),
        (REPLY, lambda s: s["$defs"]["TaskView"]["properties"].pop("error")),
        (REPLY, lambda s: s["$defs"]["TaskState"]["enum"].append("tired")),
    ],
)
def test_an_incompatible_schema_fails_the_check(name: str, edit: Edit) -> None:
    """Events and replies may become neither narrower nor wider, commands not narrower."""
    assert any(line.startswith(f"{name}: ") for line in today_with(name, edit))


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        (EVENT, lambda s: s["properties"].update(mood={"type": "string"})),
        (REPLY, lambda s: s["$defs"]["TaskView"]["properties"].update(mood={"type": "string"})),
        (COMMAND, lambda s: s["properties"].update(mood={"type": "string"})),
        (COMMAND, lambda s: s["properties"]["task"].pop("pattern")),
        (COMMAND, lambda s: s["required"].remove("spec")),
    ],
)
def test_a_compatible_schema_passes_the_check(name: str, edit: Edit) -> None:
    """Optional fields may be added everywhere, and commands may become wider."""
    assert today_with(name, edit) == []


def test_a_schema_that_is_no_longer_published_fails_the_check() -> None:
    """This includes a type that is no longer published: its events are stored."""
    schemas = dict(json_schemas())
    del schemas[EVENT]
    assert [one.schema for one in breaks(released_schemas(), schemas) if not one.change.field] == [EVENT]


def test_every_schema_is_compatible_with_the_last_release() -> None:
    """`make check` runs this check, and it finds no problem."""
    assert problems(released_schemas(), json_schemas()) == []
    assert "-m tests.releases.schema_policy\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_released_schemas_are_those_of_the_commit() -> None:
    """They are what `make freeze` writes, without manual changes."""
    assert lines_of(schemas_of(last_release().commit)) == SCHEMAS.read_text(encoding="utf-8")


def test_every_new_schema_is_in_the_changelog() -> None:
    """A new schema is under Unreleased, with the name of its event, command or request."""
    unreleased = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## 0")[0]
    added = json_schemas().keys() - released_schemas().keys()
    names = {name.removesuffix(".request").removesuffix(".reply") for name in added}
    assert sorted(name for name in names if f"`{name}`" not in unreleased) == []


def test_schemas_are_written_one_in_each_line() -> None:
    """The difference between two releases can be read, as each schema has its own line."""
    assert json.loads(lines_of({"b": {}, "a": {"x": 1}})) == {"a": {"x": 1}, "b": {}}
    assert lines_of({"b": {}, "a": {"x": 1}}).count("\n") == 4
