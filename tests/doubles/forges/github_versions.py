"""Versions of GitHub's API: the document of the oldest, with the changes of later ones as JSON merge patches."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

_CHANGES: Final = "x-github-breaking-changes"


def changed(document: dict[str, Any], version: str) -> dict[str, Any]:
    """The document with the changes of a version."""
    made = deepcopy(document)
    schemas = made["components"]["schemas"]
    for name, schema in schemas.items():
        for patch in _patches(schema, version):
            schemas[name] = _merged(schemas[name], patch)
    return made


def removed_names(document: dict[str, Any], version: str) -> frozenset[str]:
    """The properties that a version removes; the document is changed wherever they occur."""
    schemas = document["components"]["schemas"].values()
    patches = [patch for schema in schemas for patch in _patches(schema, version)]
    return frozenset(name for patch in patches for name, one in patch.get("properties", {}).items() if one is None)


def without(body: Any, names: frozenset[str]) -> Any:
    """A body without these properties."""
    if isinstance(body, dict):
        return {name: without(each, names) for name, each in body.items() if name not in names}
    return [without(each, names) for each in body] if isinstance(body, list) else body


def _patches(schema: dict[str, Any], version: str) -> Iterator[dict[str, Any]]:
    yield from (one["patch"] for one in schema.get(_CHANGES, []) if one["version"] == version)


def _merged(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch by RFC 7396: null removes, and lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    base = value if isinstance(value, dict) else {}
    merged = {name: _merged(base.get(name), each) for name, each in patch.items() if each is not None}
    return {name: each for name, each in base.items() if name not in patch} | merged
