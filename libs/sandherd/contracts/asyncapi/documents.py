"""Assembles the AsyncAPI 3.0 documents: every subject, who publishes and receives on it, and the messages."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from sandherd.contracts.asyncapi import connection
from sandherd.contracts.asyncapi.messages import messages, schemas
from sandherd.contracts.events import EVENTS
from sandherd.contracts.principals import Principal
from sandherd.contracts.schemas import Document, json_schemas
from sandherd.contracts.subjects import PREFIX, TABLE, MessageKind, Subject

ROLES: Final = (Principal.SUBSCRIBER, Principal.CLIENT, Principal.WORKER)
"""The roles of programs that users may write. Each role has its own document."""
_PRINCIPALS: Final = {Principal.WORKER: (Principal.JOINER, Principal.WORKER)}
"""The principals of a program, for a role that has several: a worker begins with the joiner's credential."""
_PARAMETERS: Final = {
    "project": "The project; in a request, `fleet` stands for all projects.",
    "sandbox": "The sandbox.",
    "entity": "The task or sandbox that the event is about, or `fleet`.",
    "action": "What happened; with the token before it, the event's type.",
    "artifact": "The artifact.",
    "service": "The service that could not handle the message.",
    "reason": "The code of the reason, with dashes.",
}


def document() -> Document:
    """The document of all subjects: a channel for each subject, and an operation for each principal and direction."""
    return {
        "asyncapi": "3.0.0",
        "id": f"urn:{PREFIX.replace('.', ':')}",
        "info": _info("Sandherd", "The messages on Sandherd's broker: events, commands, requests, messages to agents."),
        "defaultContentType": "application/json",
        "servers": connection.SERVERS,
        "channels": dict(_channels()) | connection.channels(),
        "operations": dict(_operations()) | connection.operations(),
        "components": {
            "securitySchemes": connection.security(),
            "messages": dict(messages()) | connection.messages(),
            "schemas": schemas(),
        },
    }


def role_document(role: Principal) -> Document:
    """The part of the document that concerns one role, as a complete document: what its programs send and receive."""
    whole = document()
    operations = {
        name.removeprefix(f"{principal}."): operation
        for principal in _PRINCIPALS.get(role, (role,))
        for name, operation in whole["operations"].items()
        if name.startswith(f"{principal}.")
    }
    channels = _referred_entries(operations, whole["channels"], "#/channels/")
    used = _referred_entries(channels, whole["components"]["messages"], "#/components/messages/")
    parts = _referred_entries(used, whole["components"]["schemas"], "#/components/schemas/")
    return {
        **whole,
        "id": f"{whole['id']}:{role}",
        "info": _info(f"Sandherd: {role}", f"What a {role} sends and receives on Sandherd's broker."),
        "channels": channels,
        "operations": operations,
        "components": {"securitySchemes": connection.security(role), "messages": used, "schemas": parts},
    }


def version() -> str:
    """The version of the interface: `1.<number of schemas>.<number of properties>`.

    Published schemas and properties are never removed, so it increases with every addition.
    """
    found = json_schemas()
    return f"1.{len(found)}.{sum(map(_count_properties, found.values()))}"


def _count_properties(part: Any) -> int:
    if isinstance(part, list):
        return sum(map(_count_properties, part))
    if not isinstance(part, dict):
        return 0
    own = part.get("properties")
    return (len(own) if isinstance(own, dict) else 0) + sum(map(_count_properties, part.values()))


def _referred_entries(start: Document, pool: Document, prefix: str) -> Document:
    """The entries of `pool` that `start` refers to, directly or through others, in the order of `pool`."""
    found: set[str] = set()
    waiting = _targets(start, prefix)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting |= _targets(pool[name], prefix)
    return {name: part for name, part in pool.items() if name in found}


def _targets(part: Any, prefix: str) -> set[str]:
    """The names after `prefix` to which references in a part of the document point."""
    if isinstance(part, list):
        return set().union(*(_targets(item, prefix) for item in part))
    if not isinstance(part, dict):
        return set()
    ref = part.get("$ref")
    own = {ref.removeprefix(prefix).partition("/")[0]} if isinstance(ref, str) and ref.startswith(prefix) else set()
    return own.union(*(_targets(item, prefix) for item in part.values()))


def _info(title: str, description: str) -> Document:
    return {
        "title": title,
        "version": version(),
        "description": description,
        "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
    }


def _channels() -> Iterator[tuple[str, Document]]:
    for row in TABLE:
        yield row.name, _channel(row)
        if reply := _reply_messages(row):
            description = f"The reply subject of `{row.name}`, which the requester chooses."
            yield f"{row.name}.reply", {"address": None, "description": description, "messages": _refs(reply)}


def _channel(row: Subject) -> Document:
    tokens = re.findall(r"{(\w+)}", row.template)
    channel: Document = {
        "address": row.template,
        "description": row.description,
        "parameters": {token: {"description": _PARAMETERS[token]} for token in tokens},
        "tags": [{"name": row.kind.value}],
        "messages": _refs(_row_messages(row)),
        "x-mood": row.kind.value,
    }
    return channel | ({"x-stream": row.stream} if row.stream else {})


def _refs(names: Iterable[str]) -> Document:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _row_messages(row: Subject) -> list[str]:
    """The names of the messages that are published on a subject."""
    kind, _, rest = row.name.partition(".")
    if row.kind is MessageKind.EVENT:
        return [name for name in EVENTS if name.startswith(f"{rest}.")]
    if row.kind is MessageKind.REQUEST:
        return [f"{rest}.request"]
    if row.kind is MessageKind.COMMAND:
        return [rest]
    return ["inbox-message"] if row.kind in {MessageKind.INBOX, MessageKind.DELIVERY} else [kind]


def _reply_messages(row: Subject) -> list[str]:
    if row.kind is MessageKind.REQUEST:
        return [f"{row.name.removeprefix('request.')}.reply"]
    return ["receipt"] if row.kind is MessageKind.DELIVERY else []


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
        "summary": row.description,
        "tags": [{"name": row.kind.value}],
        "messages": [{"$ref": f"{channel}/messages/{name}"} for name in _row_messages(row)],
    }
    if reply := _reply_messages(row):
        operation["reply"] = {
            "address": connection.REPLY_ADDRESS,
            "channel": {"$ref": f"{channel}.reply"},
            "messages": [{"$ref": f"{channel}.reply/messages/{name}"} for name in reply],
        }
    return operation
