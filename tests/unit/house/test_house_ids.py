"""Ids of events: under what can be computed before an event is published, something else can be published."""

import ast
from typing import Any

NAMES_FOUND_AGAIN = {"spawner.tasks.scheduling_order"}
"""What derives a name that is not an id of an event: that of an attempt's sandbox."""


def calls(tree: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Name | ast.alias) and name in ast.dump(node) for node in ast.walk(tree))


def test_only_names_are_derived_without_a_key(product: list[Any]) -> None:
    """Ids of events and commands are random, or derived with the key of the service that publishes them."""
    named = [source for source in product if "derived_uuid" in source.text]
    found = {source.name for source in named if calls(source.tree, "'derived_uuid'")}
    allowed = {f"services/spawner/{name.replace('.', '/')}.py" for name in NAMES_FOUND_AGAIN}
    assert found == allowed
