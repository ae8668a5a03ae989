"""Invalid input for tests: the golden examples, changes that make them invalid, and the refusal of a document."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import sandherd.contracts
from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.decoder import read_command, read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import ContractError, Problem
from sandherd.contracts.subjects import command_subject, event_subject

Json = Any
Read = Callable[[str, bytes], Envelope[Any]]

GOLDEN = Path(sandherd.contracts.__file__).parent / "golden" / "v1"
EVENT_DOCUMENTS = [json.loads(path.read_bytes()) for path in sorted((GOLDEN / "events").glob("*.json"))]
COMMAND_DOCUMENTS = [json.loads(path.read_bytes()) for path in sorted((GOLDEN / "commands").glob("*.json"))]
DOCUMENTS = EVENT_DOCUMENTS + COMMAND_DOCUMENTS
HOSTILE = ["*", ">", "a.b", "", "a\n", "A", "$SYS", "../x", "a" * 300, "\N{FULLWIDTH LATIN SMALL LETTER A}"]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
documents = st.sampled_from(DOCUMENTS)
subjects = st.sampled_from([*map(str, HOSTILE), "sandherd.v1.event.>"]) | st.text(max_size=80)


def subject_of(document: Json) -> str:
    if document["type"] in COMMANDS:
        return command_subject(document["type"], document["project"])
    return event_subject(document["project"], document["subject"], document["type"])


def reader_of(document: Json) -> Read:
    return read_command if document in COMMAND_DOCUMENTS else read_event


def encode(document: Json) -> bytes:
    return json.dumps(document).encode(errors="surrogatepass")


def refusal(read: Read, subject: str, document: bytes) -> Problem | None:
    """The error with which a document is refused, or None. Any error other than `ContractError` fails the test."""
    try:
        read(subject, document)
    except ContractError as error:
        return error.problem
    return None


def paths(document: Json, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every member of a document."""
    listed = document if isinstance(document, list) else []
    members = document.items() if isinstance(document, dict) else enumerate(listed)
    return [path for key, value in members for path in [(*at, key), *paths(value, (*at, key))]]


def changed(document: Json, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Json:
    """A copy in which `change(container, key)` was done at `path`."""
    copy = deepcopy(document)
    container = copy
    for key in path[:-1]:
        container = container[key]
    change(container, path[-1])
    return copy


def put(value: Json) -> Callable[[Any, Any], None]:
    return lambda container, key: container.__setitem__(key, value)


def drop(container: Any, key: Any) -> None:
    del container[key]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Json, Json, tuple[Any, ...]]:
    """A golden example, the example with one member dropped or replaced, and the path of that member."""
    document = draw(documents)
    path = draw(st.sampled_from(paths(document)))
    change = draw(st.just(drop) | anything.map(put))
    return document, changed(document, path, change), path


FREE = {
    "agent.tool_use": "input",
    "agent.tool_completed": "tool_response",
    "agent.system_message": "metadata",
    "agent.subagent_completed": "subagent_result",
    "task.completed": "result",
}
"""The fields in which an event accepts JSON of any shape."""


@st.composite
def free_json(draw: st.DrawFn) -> Json:
    """A golden example with arbitrary JSON in such a field."""
    document = draw(st.sampled_from([sample for sample in EVENT_DOCUMENTS if sample["type"] in FREE]))
    return changed(document, ("data", FREE[document["type"]]), put({"said": draw(anything)}))
