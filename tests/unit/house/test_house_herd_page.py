"""docs/herd.md describes what the methods of `Herd` take and return."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sandherd import client

ROOT = Path(__file__).parents[3]
SECTIONS = {
    part.partition("\n")[0]: part for part in (ROOT / "docs/herd.md").read_text(encoding="utf-8").split("\n### ")[1:]
}
EXPORTED = [getattr(client, name) for name in client.__all__]
MODELS = [
    one for one in EXPORTED if isinstance(one, type) and (issubclass(one, BaseModel) or dataclasses.is_dataclass(one))
]
ELSEWHERE = {"ArtifactRef", "Envelope[Any]", "EventArtifact", "ListPage", "ReceivedEvent"}


def fields_of(model: type[Any]) -> list[str]:
    """The public fields of a model or dataclass."""
    if issubclass(model, BaseModel):
        return list(model.model_fields)
    return [one.name for one in dataclasses.fields(model) if not one.name.startswith("_")]


@pytest.mark.parametrize(
    "model", [one for one in MODELS if one.__name__ not in ELSEWHERE], ids=lambda one: one.__name__
)
def test_page_has_a_table_of_each_exported_model(model: type[Any]) -> None:
    """Each of its fields, also of inherited ones, is a row of its section."""
    rows = {line.split("`")[1] for line in SECTIONS[model.__name__].splitlines() if line.startswith("| `")}
    assert rows == set(fields_of(model))


def test_page_links_only_to_its_own_types() -> None:
    """Each type that a table names has a section."""
    page = (ROOT / "docs/herd.md").read_text(encoding="utf-8")
    linked = {text.partition(")")[0] for text in page.split("](#")[1:]}
    assert linked
    assert linked <= {title.lower() for title in SECTIONS}
