"""Whether today's HTTP API accepts the requests of the last release, and responds as its clients expect.

python -m tests.releases.api_policy [COMMIT]

`make check` runs it without an argument; `make freeze` passes the commit of a release, whose document is stored then.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.releases.archived import archived, whole_name
from tests.releases.schema_changes import not_accepted

LAST: Final = Path(__file__).with_name("last_openapi.json")
TODAY: Final = Path(__file__).parents[2] / "docs" / "openapi.json"
Document = Mapping[str, Any]


def breaks(released: Document, today: Document) -> list[str]:
    """What a client of the last release would notice: routes, parameters and responses that are no longer the same."""
    found: list[str] = []
    released, today = _own(released), _own(today)
    for path, methods in released["paths"].items():
        for method, operation in methods.items():
            new = today["paths"].get(path, {}).get(method)
            where = f"{method.upper()} {path}"
            if new is None:
                found.append(f"{where}: it no longer exists")
            else:
                found += [f"{where}: {text}" for text in _differences(released, operation, today, new)]
    return sorted(found)


def _differences(released: Document, old: Document, today: Document, new: Document) -> Iterator[str]:
    yield from _of_parameters(released, old, today, new)
    yield from (f"body: {one}" for one in _lost_types(old.get("requestBody", {}), new.get("requestBody", {})))
    before, after = _schema(old.get("requestBody", {})), _schema(new.get("requestBody", {}))
    if after is not None and before is None and new["requestBody"].get("required"):
        yield "it needs a body"
    if before is not None:
        yield from (f"body: {one}" for one in _changes(today, after or {}, released, before, ignores_unknown=False))
    for status, response in old["responses"].items():
        if status not in new["responses"]:
            yield f"{status}: there is no such response"
            continue
        yield from (f"{status}: {one}" for one in _lost_types(response, new["responses"][status]))
        before, after = _schema(response), _schema(new["responses"][status])
        if before is not None and after is not None:
            yield from (f"{status}: {one}" for one in _changes(released, before, today, after, ignores_unknown=True))


def _of_parameters(released: Document, old: Document, today: Document, new: Document) -> Iterator[str]:
    before = {(one["in"], one["name"]): one for one in old.get("parameters", [])}
    after = {(one["in"], one["name"]): one for one in new.get("parameters", [])}
    for (place, name), one in before.items():
        if (place, name) not in after:
            yield f"{place} parameter {name}: it no longer exists"
        else:
            changes = _changes(today, after[place, name]["schema"], released, one["schema"], ignores_unknown=False)
            yield from (f"{place} parameter {name}: {change}" for change in changes)
    for (place, name), one in after.items():
        if one.get("required") and not before.get((place, name), {}).get("required"):
            yield f"{place} parameter {name}: it is required"


def _lost_types(old: Document, new: Document) -> list[str]:
    """The media types that a body no longer has."""
    lost = sorted(old.get("content", {}).keys() - new.get("content", {}).keys())
    return [f"{one}: it no longer exists" for one in lost]


def _changes(reading: Document, reader: Any, writing: Document, writer: Any, *, ignores_unknown: bool) -> list[str]:
    found = not_accepted(_whole(reading, reader), _whole(writing, writer), ignores_unknown=ignores_unknown)
    return [str(change) for change in found]


def _whole(document: Document, schema: Any) -> Any:
    """The schema as a document of its own: its references lead to its own definitions."""
    return {**schema, "$defs": document.get("components", {}).get("schemas", {})}


def _own(document: Document) -> Document:
    """The document with references as a schema's own definitions have them."""
    found: Document = json.loads(json.dumps(document).replace("#/components/schemas/", "#/$defs/"))
    return found


def _schema(body: Document) -> Any:
    return body.get("content", {}).get("application/json", {}).get("schema")


if __name__ == "__main__":
    if sys.argv[1:]:
        ((_, document),) = archived(whole_name(sys.argv[1]), "docs/openapi.json")
        LAST.write_bytes(document)
        sys.exit()
    wrong = breaks(json.loads(LAST.read_bytes()), json.loads(TODAY.read_bytes()))
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit("The HTTP API is not compatible with the last release (docs/gateway.md, Compatibility)")
