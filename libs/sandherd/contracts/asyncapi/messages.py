"""The messages of the AsyncAPI documents: headers, payloads, tags, and the golden files as examples."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from sandherd.contracts import headers
from sandherd.contracts.chunks import CHUNK_BYTES
from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.envelope import CONTENT_TYPE, schema_urn
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests import REQUESTS, TIMEOUT_HEADER
from sandherd.contracts.schemas import Document, json_schemas, published_models, schemas_by_reference

SCHEMAS: Final = "#/components/schemas/"
_REF: Final = f"{SCHEMAS}{{model}}"
_GOLDEN_FILES: Final = Path(__file__).parents[1] / "golden" / "v1"
_LIVE: Final = "Only on a live message, set by the broker:"
_HEADERS: Final = {
    headers.MESSAGE_ID: "The broker stores a message with this id once; for an event or command, its `id`.",
    headers.SEQUENCE_HEADER: f"{_LIVE} its sequence number in the stream. Replies and pulled events do not have it.",
    headers.STORED_SUBJECT: f"{_LIVE} its subject.",
    headers.STORED_AT: f"{_LIVE} when it was stored.",
    headers.STORED_IN: f"{_LIVE} the stream.",
    headers.PREVIOUS: f"{_LIVE} the sequence number of the message before it on its subject; 0 for the first.",
    headers.DEAD_SERVICE: "The service that could not handle the message.",
    headers.DEAD_REASON: "A problem as JSON: code, message, field, remedy.",
    headers.DEAD_SUBJECT: "The subject of the message.",
    headers.DEAD_STREAM: "The stream of the message.",
    headers.DEAD_SEQUENCE: "The sequence of the message in that stream.",
    headers.DEAD_SIZE: "Its size in bytes; a payload that leaves no space for these headers is stored truncated.",
    headers.DEAD_EXCERPT: "`true` if only the beginning of the message is stored; otherwise missing.",
    TIMEOUT_HEADER: "How many seconds the requester waits for the reply; 30 if it is missing.",
}
_CHUNK_HEADERS: Final[Document] = {
    headers.MESSAGE_ID: {
        "description": "Ends with `-` and the index of the chunk, from 0. Every chunk but the last has "
        f"{CHUNK_BYTES} bytes, so the index gives its position. The broker stores a chunk with this id once.",
        "pattern": "-[0-9]{1,9}$",
    },
    headers.LIFETIME: {
        "description": "How long the chunk is stored, such as `3600s`; if it is missing, as long as the stream has it."
    },
}


def messages() -> Iterator[tuple[str, Document]]:
    """All messages, by name."""
    refs, _ = schemas_by_reference(_REF)
    for name, model in published_models().items():
        yield name, _model_message(name, model, refs[name])
    chunk = {name: {"type": "string", **part} for name, part in _CHUNK_HEADERS.items()}
    yield (
        "artifact",
        bytes_message("artifact", "A chunk of an artifact.") | {"headers": {"type": "object", "properties": chunk}},
    )
    output = bytes_message("output", "Unchanged bytes of terminal output.")
    yield "output", output | {"headers": _headers(*headers.REPUBLISHED)}
    dead = bytes_message("dead", "The original message.")
    yield "dead", dead | {"headers": _headers(headers.MESSAGE_ID, *headers.DEAD)}


def schemas() -> Document:
    """The schemas that the messages refer to."""
    _, pool = schemas_by_reference(_REF)
    envelope = {key: part for key, part in json_schemas()["envelope"].items() if key not in {"$schema", "$id"}}
    return dict(sorted({**pool, "Envelope": envelope}.items()))


def message(name: str, description: str, payload: Document, *tags: str) -> Document:
    """A message with its name, summary, payload and tags."""
    return {
        "name": name,
        "title": name,
        "summary": description.partition("\n")[0],
        "tags": [{"name": tag} for tag in tags],
        "payload": payload,
    }


def bytes_message(name: str, description: str) -> Document:
    """A message whose payload is bytes, not JSON."""
    payload = {"type": "string", "format": "binary", "title": name.capitalize()}
    return message(name, description, payload, name) | {"contentType": "application/octet-stream"}


def _model_message(name: str, model: type[BaseModel], ref: Document) -> Document:
    doc = inspect.getdoc(model) or name
    examples = _examples(name)
    if name in EVENTS or name in COMMANDS:
        tags = _tags(name)
        title = f"{model.__name__}{tags[0].capitalize()}"
        whole = message(name, doc, _envelope_schema(name, title, ref), *tags)
        live = headers.REPUBLISHED if name in EVENTS else ()
        return whole | {"contentType": CONTENT_TYPE, "headers": _headers(headers.MESSAGE_ID, *live)} | examples
    request, _, part = name.rpartition(".")
    tags = [part, request.partition(".")[0]] if request in REQUESTS else [name]
    waits = {"headers": _headers(TIMEOUT_HEADER)} if part == "request" else {}
    return message(name, doc, ref, *tags) | waits | examples


def _tags(name: str) -> list[str]:
    """The tags of an event or a command: its kind, its domain or service, and `reserved` if nothing publishes it."""
    if name not in EVENTS:
        return ["command", COMMANDS[name].service]
    return ["event", name.partition(".")[0], *(["reserved"] if EVENTS[name].reserved else [])]


def _examples(name: str) -> Document:
    """The golden file of a message, as its example. The message `problem` has none."""
    request, _, part = name.rpartition(".")
    found = [
        _GOLDEN_FILES / "events" / f"{name}.json",
        _GOLDEN_FILES / "commands" / f"{name}.json",
        _GOLDEN_FILES / ("replies" if part == "reply" else "requests") / f"{request}.json",
        _GOLDEN_FILES / "delivery" / f"{name.replace('-', '_')}.json",
    ]
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.is_file()]
    return {"examples": [{"name": "complete", "payload": document} for document in documents]} if documents else {}


def _envelope_schema(name: str, title: str, data: Document) -> Document:
    """The schema of an envelope with this type's data."""
    narrowed = {"type": {"const": name}, "dataschema": {"const": schema_urn(name)}, "data": data}
    parts = [{"$ref": f"{SCHEMAS}Envelope"}, {"type": "object", "properties": narrowed}]
    return {"title": title, "allOf": parts}


def _headers(*names: str) -> Document:
    return {"type": "object", "properties": {name: {"type": "string", "description": _HEADERS[name]} for name in names}}
