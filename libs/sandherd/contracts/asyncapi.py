"""The AsyncAPI 3.0 document: every subject, who says and hears what on it, and what that looks like."""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Final

from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.envelope import CONTENT_TYPE, schema_urn
from sandherd.contracts.events import EVENTS
from sandherd.contracts.schemas import Document, json_schemas, pooled, published
from sandherd.contracts.subjects import PREFIX, TABLE, Mood, Subject

VERSION: Final = "1.0.0"
_SCHEMAS: Final = "#/components/schemas/"
_REF: Final = f"{_SCHEMAS}{{model}}"
_HEADERS: Final = {
    "Nats-Msg-Id": "The broker stores it once; of an event or command, its `id`.",
    "Sandherd-Service": "The service that gave the message up.",
    "Sandherd-Reason": "A problem as JSON: code, message, field, remedy.",
    "Sandherd-Subject": "Where the message came from.",
    "Sandherd-Stream": "The stream it was in.",
    "Sandherd-Stream-Sequence": "Its place there.",
    "Sandherd-Size": "Its size in bytes; a payload that left no room for these headers lies here without its end.",
}
_PARAMETERS: Final = {
    "project": "The project; in a request, `fleet` asks about all.",
    "sandbox": "The sandbox.",
    "entity": "The task or sandbox that it is about, or `fleet`.",
    "action": "What happened; with the token before it, the event's type.",
    "artifact": "The artifact.",
    "service": "The service that gave the message up.",
    "reason": "The code of the reason, with dashes.",
}


def document() -> Document:
    """The AsyncAPI 3.0 document: a channel per subject, an operation per principal and direction."""
    return {
        "asyncapi": "3.0.0",
        "id": f"urn:{PREFIX.replace('.', ':')}",
        "info": {
            "title": "Sandherd",
            "version": VERSION,
            "description": "What is said on Sandherd's broker: events, commands, requests, messages.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": dict(_channels()),
        "operations": dict(_operations()),
        "components": {"messages": dict(_messages()), "schemas": _component_schemas()},
    }


def _channels() -> Iterator[tuple[str, Document]]:
    for row in TABLE:
        yield row.name, _channel(row)
        if reply := _reply_messages(row):
            says = f"The reply subject of `{row.name}`, which its asker chooses."
            yield f"{row.name}.reply", {"address": None, "description": says, "messages": _refs(reply)}


def _channel(row: Subject) -> Document:
    tokens = re.findall(r"{(\w+)}", row.template)
    channel: Document = {
        "address": row.template,
        "description": row.says,
        "parameters": {token: {"description": _PARAMETERS[token]} for token in tokens},
        "messages": _refs(_row_messages(row)),
        "x-mood": row.mood.value,
    }
    return channel | ({"x-stream": row.stream} if row.stream else {})


def _refs(names: Iterable[str]) -> Document:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _row_messages(row: Subject) -> list[str]:
    """The names of the messages that a subject carries."""
    kind, _, rest = row.name.partition(".")
    if row.mood is Mood.EVENT:
        return [name for name in EVENTS if name.startswith(f"{rest}.")]
    if row.mood is Mood.REQUEST:
        return [f"{rest}.request"]
    if row.mood is Mood.COMMAND:
        return [rest]
    return ["inbox-message"] if row.mood in {Mood.INBOX, Mood.DELIVERY} else [kind]


def _reply_messages(row: Subject) -> list[str]:
    if row.mood is Mood.REQUEST:
        return [f"{row.name.removeprefix('request.')}.reply"]
    return ["receipt"] if row.mood is Mood.DELIVERY else []


def _operations() -> Iterator[tuple[str, Document]]:
    for row in TABLE:
        for action, principals in (("send", row.producers), ("receive", row.consumers)):
            for principal in sorted(principals):
                yield f"{principal}.{action}.{row.name}", _operation(row, action)


def _operation(row: Subject, action: str) -> Document:
    channel = f"#/channels/{row.name}"
    operation: Document = {
        "action": action,
        "channel": {"$ref": channel},
        "summary": row.says,
        "messages": [{"$ref": f"{channel}/messages/{name}"} for name in _row_messages(row)],
    }
    if reply := _reply_messages(row):
        messages = [{"$ref": f"{channel}.reply/messages/{name}"} for name in reply]
        operation["reply"] = {"channel": {"$ref": f"{channel}.reply"}, "messages": messages}
    return operation


def _messages() -> Iterator[tuple[str, Document]]:
    refs, _ = pooled(_REF)
    kept = {"contentType": CONTENT_TYPE, "headers": _headers("Nats-Msg-Id")}
    for name, model in published().items():
        said = inspect.getdoc(model) or name
        enveloped = name in EVENTS or name in COMMANDS
        yield (
            name,
            _message(name, said, _said(name, refs[name])) | kept if enveloped else _message(name, said, refs[name]),
        )
    for name, says in (("artifact", "A chunk of an artifact."), ("output", "Terminal bytes, as they came.")):
        yield name, _bytes(name, says)
    yield "dead", _bytes("dead", "The message as it was.") | {"headers": _headers(*_HEADERS)}


def _message(name: str, says: str, payload: Document) -> Document:
    return {"name": name, "summary": says.partition("\n")[0], "payload": payload}


def _said(name: str, data: Document) -> Document:
    """An envelope with this type's data."""
    narrowed = {"type": {"const": name}, "dataschema": {"const": schema_urn(name)}, "data": data}
    return {"allOf": [{"$ref": f"{_SCHEMAS}Envelope"}, {"type": "object", "properties": narrowed}]}


def _bytes(name: str, says: str) -> Document:
    return _message(name, says, {"type": "string", "format": "binary"}) | {"contentType": "application/octet-stream"}


def _headers(*names: str) -> Document:
    return {"type": "object", "properties": {name: {"type": "string", "description": _HEADERS[name]} for name in names}}


def _component_schemas() -> Document:
    _, pool = pooled(_REF)
    envelope = {key: part for key, part in json_schemas()["envelope"].items() if key not in {"$schema", "$id"}}
    return dict(sorted({**pool, "Envelope": envelope}.items()))
