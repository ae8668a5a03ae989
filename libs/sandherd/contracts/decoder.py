"""Decodes messages and checks them against their subject. Invalid input is refused here, with a typed error."""

import re
from typing import TYPE_CHECKING, Any, Final

from sandherd.contracts.envelope import Envelope, parse, parse_separately, schema_urn
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EventData, base, event_model
from sandherd.contracts.names import FLEET
from sandherd.contracts.subjects import BY_NAME, MessageKind, read_event_subject

if TYPE_CHECKING:
    from sandherd.contracts.commands import Command

_UUID_VERSION: Final = 7
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL as JSON escapes it; after another backslash the same characters are only text."""
AGENT_SOURCE = "/sandherd/sandbox/"
"""Followed by the sandbox's name, the only source that a worker may publish as."""


def read_event(subject: str, document: bytes, *, separately: bool = False) -> Envelope[EventData]:
    """The event in `document`, if it may be published on `subject`. Raises `ContractError`.

    `separately` is for a program that reads a small number of events of each type (`envelope.parse_separately`).
    """
    project, entity, event_type = read_event_subject(subject)
    model = base.EVENTS.get(event_type) or event_model(event_type)
    if model is None:
        raise ContractError(
            Code.UNKNOWN_TYPE,
            f"{event_type[:80]!r} is not an event of this version",
            field="type",
            remedy="upgrade this service, then requeue the dead letter",
        )
    event = parse_separately(document, model) if separately else parse(document, model)
    _check_subject(event, event_type, project, entity)
    _check_storable(event, document)
    return event


def read_command(subject: str, document: bytes) -> "Envelope[Command]":
    """The command in `document`, if it may be published on `subject`. Raises `ContractError`."""
    from sandherd.contracts.commands import COMMANDS  # a client decodes events only

    for row in BY_NAME.values():
        names = row.match(subject) if row.kind is MessageKind.COMMAND else None
        if names is not None:
            if names["project"] == FLEET:
                raise ContractError(Code.UNSAFE_NAME, f"{FLEET} is reserved: it means all projects", field="project")
            command_type = row.name.removeprefix("command.")
            command = parse(document, COMMANDS[command_type])
            _check_subject(command, command_type, names["project"], command.subject)
            _check_entity(command)
            return command
    raise ContractError(Code.UNKNOWN_TYPE, f"{subject[:120]!r} is not a command of this version", field="type")


def _check_entity(command: "Envelope[Command]") -> None:
    """Raise `ContractError` if a command's `subject` is not what its data names: its NATS subject has no entity."""
    if command.subject != command.data.entity:
        raise ContractError(
            Code.INVALID_FIELD,
            f"subject: not the {command.data.about} that the data names",  # without its value, as of all data
            field="subject",
            remedy=f"set it to `data.{command.data.about}`",
        )


def _check_storable(event: Envelope[Any], document: bytes) -> None:
    """Raise `ContractError` for an id that does not order by time, and for a NUL, which Postgres text can't hold."""
    if event.id.version != _UUID_VERSION:
        raise ContractError(Code.INVALID_FIELD, "id: not a UUIDv7", field="id", remedy="see RFC 9562, 5.7")
    if b"\\u0000" in document and _NUL.search(document):
        raise ContractError(
            Code.INVALID_FIELD, "data: a text contains NUL", field="data", remedy="replace it, such as by U+FFFD"
        )


def _check_subject(envelope: Envelope[Any], message_type: str, project: str, entity: str) -> None:
    """Raise `ContractError` unless the envelope agrees with its subject: the broker checks only the subject."""
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
    """The error for the first field that is not as its subject requires."""
    field, value = next((field, value) for field, value in expected.items() if getattr(envelope, field) != value)
    text = f"{field} is {str(getattr(envelope, field))[:80]!r}, but the subject requires {value!r}"
    return ContractError(Code.WRONG_SUBJECT, text, field=field)
