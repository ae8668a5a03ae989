"""Decodes messages and checks them against their subject. Invalid input is refused here, with a typed error."""

import re
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from sandherd.contracts.envelope import Envelope, parse, parse_separately, parse_unlimited, schema_urn
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EventData, base, event_model
from sandherd.contracts.names import FLEET
from sandherd.contracts.subjects import BY_NAME, MessageKind, read_event_subject

if TYPE_CHECKING:
    from sandherd.contracts.commands import Command

_UUID_VERSION: Final = 7
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The JSON escape of NUL. After an odd number of further backslashes it is not an escape, but ordinary text."""
AGENT_SOURCE = "/sandherd/sandbox/"
"""With the sandbox's name after it, this is the only `source` that the events of a worker may have."""


def read_event(subject: str, document: bytes, *, separately: bool = False) -> Envelope[EventData]:
    """The event in `document`, if it may be published on `subject`. Raises `ContractError`.

    `separately` uses less CPU time in a program that reads only a few events of each type: pydantic then builds no
    validator for each type's whole envelope (`envelope.parse_separately`).
    """
    project, entity, event_type = read_event_subject(subject)
    model = base.EVENTS.get(event_type) or event_model(event_type)
    if model is None:
        raise _unknown_type(event_type)
    event = parse_separately(document, model) if separately else parse(document, model)
    _check_subject(event, event_type, project, entity)
    _check_storable(event, document)
    return event


def read_stored(envelope: dict[str, Any], *, unknown: type[EventData] | None = None) -> Envelope[Any]:
    """The event in an envelope from the history, whose subject and limits were checked when it was stored.

    `unknown` is the model for types that are not of this version, and for data that the history has omitted. Without
    it, both raise `ContractError`, as invalid data does.
    """
    event_type = str(envelope.get("type"))
    model = base.EVENTS.get(event_type) or event_model(event_type) or unknown
    if model is None:
        raise _unknown_type(event_type)
    if "dataomitted" in envelope and not envelope.get("data"):  # a publisher may have written this attribute, too
        model = unknown or model
    return parse_unlimited(to_json(envelope, inf_nan_mode="null"), model)


def _unknown_type(event_type: str) -> ContractError:
    return ContractError(
        Code.UNKNOWN_TYPE,
        f"{event_type[:80]!r} is not an event of this version",
        field="type",
        remedy="upgrade this service, then requeue the dead letter",
    )


def read_command(subject: str, document: bytes) -> "Envelope[Command]":
    """The command in `document`, if it may be published on `subject`. Raises `ContractError`."""
    from sandherd.contracts.commands import COMMANDS  # imported here, because clients decode events only

    for definition in BY_NAME.values():
        names = definition.match(subject) if definition.kind is MessageKind.COMMAND else None
        if names is not None:
            if names["project"] == FLEET:
                raise ContractError(Code.UNSAFE_NAME, f"{FLEET} is reserved: it means all projects", field="project")
            command_type = definition.name.removeprefix("command.")
            command = parse(document, COMMANDS[command_type])
            _check_subject(command, command_type, names["project"], command.subject)
            _check_entity(command)
            return command
    raise ContractError(Code.UNKNOWN_TYPE, f"{subject[:120]!r} is not a command of this version", field="type")


def _check_entity(command: "Envelope[Command]") -> None:
    """Raise `ContractError` if a command's `subject` is not the task or sandbox that its `data` names.

    The NATS subject of a command can't be compared, because it contains no entity.
    """
    if command.subject != command.data.entity:
        raise ContractError(
            Code.INVALID_FIELD,
            f"subject: not the {command.data.about} that the data names",  # error texts contain no values of the data
            field="subject",
            remedy=f"set it to `data.{command.data.about}`",
        )


def _check_storable(event: Envelope[Any], document: bytes) -> None:
    """Raise `ContractError` for an id that is not a UUIDv7, and for a NUL, which Postgres can't store in a text."""
    if event.id.version != _UUID_VERSION:
        raise ContractError(Code.INVALID_FIELD, "id: not a UUIDv7", field="id", remedy="see RFC 9562, 5.7")
    if b"\\u0000" in document and _NUL.search(document):
        raise ContractError(
            Code.INVALID_FIELD, "data: a text contains NUL", field="data", remedy="replace it, such as by U+FFFD"
        )


def _check_subject(envelope: Envelope[Any], message_type: str, project: str, entity: str) -> None:
    """Raise `ContractError` unless the envelope agrees with its NATS subject.

    The broker's permissions apply to the subject only, so a publisher could write anything into the envelope.
    """
    is_agents = message_type.startswith("agent.")
    agrees = envelope.type == message_type and envelope.project == project and envelope.subject == entity
    if not agrees or (is_agents and (envelope.sandboxid != entity or envelope.source != AGENT_SOURCE + entity)):
        expected = {"type": message_type, "project": project, "subject": entity}
        expected |= {"sandboxid": entity, "source": AGENT_SOURCE + entity} if is_agents else {}
        raise _disagreement(envelope, expected)
    if envelope.dataschema != schema_urn(message_type):
        raise ContractError(
            Code.UNKNOWN_VERSION, f"dataschema {envelope.dataschema[:80]!r} is not of this version", field="dataschema"
        )


def _disagreement(envelope: Envelope[Any], expected: dict[str, str]) -> ContractError:
    """The error for the first field of the envelope that does not have the value that the subject requires."""
    field, value = next((field, value) for field, value in expected.items() if getattr(envelope, field) != value)
    text = f"{field} is {str(getattr(envelope, field))[:80]!r}, but the subject requires {value!r}"
    return ContractError(Code.WRONG_SUBJECT, text, field=field)
