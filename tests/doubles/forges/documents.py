"""Published OpenAPI documents, from npm: the operations of a document that a double serves, cached in `build`.

GitHub's document has 13 MB, and its package 390 MB: only the operations that are served are stored, by the digest of
the document and of their names, and the rest of the package is removed.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.npm_packages import FORGE_DOCUMENTS, ROOT, node_with

_PUBLISHED: Final = {
    "github": "node_modules/@octokit/openapi/generated/api.github.com.json",
    "github-webhooks": "node_modules/@octokit/openapi-webhooks/generated/api.github.com.json",
}
_GRAPHQL: Final = Path("node_modules/@octokit/graphql-schema/schema.graphql")
_STORE: Final = ROOT / "build" / "openapi"
_LOCK: Final = FORGE_DOCUMENTS / "package-lock.json"


def published_document(name: str, operations: Sequence[str]) -> dict[str, Any]:
    """These operations (or webhooks) of a published document, with the components that they refer to."""
    known = _LOCK.read_bytes(), json.dumps(sorted(operations)).encode(), Path(__file__).read_bytes()
    digest = hashlib.sha256(b"".join(known)).hexdigest()[:16]
    stored = _STORE / f"{name}-{digest}.json"
    if not stored.exists():
        _STORE.mkdir(parents=True, exist_ok=True)
        with (_STORE / ".lock").open("w") as only_one:
            fcntl.flock(only_one, fcntl.LOCK_EX)
            if not stored.exists():
                _store(stored, _PUBLISHED[name], operations)
    document: dict[str, Any] = json.loads(stored.read_bytes())
    return document


def github_graphql() -> str:
    """GitHub's GraphQL schema, in the schema language."""
    _, folder = node_with(FORGE_DOCUMENTS)
    return (folder / _GRAPHQL).read_text(encoding="utf-8")


def _store(stored: Path, published: str, operations: Sequence[str]) -> None:
    _, folder = node_with(FORGE_DOCUMENTS)
    whole = folder / published
    part = excerpt(json.loads(whole.read_bytes()), operations)
    for other in whole.parent.glob("*.json"):
        if other != whole:
            other.unlink()
    beside = stored.with_suffix(".new")
    beside.write_text(json.dumps(part))
    beside.replace(stored)


def excerpt(document: dict[str, Any], operations: Sequence[str]) -> dict[str, Any]:
    """The operations with these ids, and all that they refer to. Raises `KeyError` if the document lacks one."""
    paths: dict[str, Any] = {}
    for path, methods in {**document.get("paths", {}), **document.get("webhooks", {})}.items():
        chosen = {name: one for name, one in methods.items() if one.get("operationId") in operations}
        if chosen:
            paths[path] = chosen
    found = {one["operationId"] for methods in paths.values() for one in methods.values()}
    if missing := set(operations) - found:
        raise KeyError(f"the document has no operation {sorted(missing)}")
    part: dict[str, Any] = {"openapi": document["openapi"], "info": document["info"], "paths": _bare(paths)}
    for reference in _all_references(document, part["paths"]):
        _set(part, reference, _bare(_resolve(document, reference)))
    return part


def _all_references(document: dict[str, Any], root: Any) -> set[str]:
    known: set[str] = set()
    waiting = [root]
    while waiting:
        for reference in set(_references(waiting.pop())) - known:
            known.add(reference)
            waiting.append(_bare(_resolve(document, reference)))
    return known


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        for each in node.values():
            yield from _references(each)
    elif isinstance(node, list):
        for each in node:
            yield from _references(each)


def _resolve(document: dict[str, Any], reference: str) -> Any:
    node: Any = document
    for name in reference.removeprefix("#/").split("/"):
        node = node[name.replace("~1", "/").replace("~0", "~")]
    return node


def _set(document: dict[str, Any], reference: str, value: Any) -> None:
    *folders, last = reference.removeprefix("#/").split("/")
    node = document
    for name in folders:
        node = node.setdefault(name, {})
    node[last] = value


def _bare(node: Any) -> Any:
    """A node without its examples, which are most of a document."""
    if isinstance(node, dict):
        return {name: _bare(each) for name, each in node.items() if not _is_example(name, each)}
    return [_bare(each) for each in node] if isinstance(node, list) else node


def _is_example(name: str, value: Any) -> bool:
    """Whether the key is an example. A property may also be named `example`: its value is a schema."""
    return name in {"example", "examples"} and not (isinstance(value, dict) and "type" in value)
