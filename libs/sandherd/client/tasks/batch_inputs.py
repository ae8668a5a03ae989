"""The `inputs` of a task in a file: the files that it takes from the results of its dependencies."""

from collections.abc import Mapping
from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_REMEDY: Final = "write `inputs: [{from: build, paths: [dist/**]}]`"


def inputs_of(label: str, entry: Mapping[str, Any], tasks: Mapping[str, str]) -> list[dict[str, Any]]:
    """The `inputs` of a task spec: names of the file are replaced by names of tasks. Raises `HerdError`."""
    inputs = entry.get("inputs") or []
    if not isinstance(inputs, list) or not all(isinstance(item, Mapping) and "from" in item for item in inputs):
        raise _error(f"{label}: inputs is not a list of mappings with `from` and `paths`", _REMEDY)
    dependencies, earlier_tasks = list(entry.get("depends_on") or []), list(entry.get("after") or [])
    return [
        _input(label, item, {name: tasks[name] for name in dependencies} | {name: name for name in earlier_tasks})
        for item in inputs
    ]


def _input(label: str, item: Mapping[str, Any], known: Mapping[Any, str]) -> dict[str, Any]:
    source = item["from"]
    if not isinstance(source, str) or source not in known:
        raise _error(
            f"{label}: it takes files from {str(source)[:80]!r}, which it does not depend on",
            "add it to `depends_on`, or to `after` if it was submitted before",
        )
    return {name: value for name, value in item.items() if name != "from"} | {"task": known[source]}


def _error(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="inputs", remedy=remedy)
