"""Reading what was said: the bytes, against the subject they came on. Bad input ends here, with a typed error."""

import re
from typing import Any, Final

from sandherd.contracts.commands import COMMANDS, Command
from sandherd.contracts.envelope import Envelope, parse, schema_urn
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.names import FLEET
from sandherd.contracts.subjects import BY_NAME, Mood, read_event_subject

_UUID_VERSION: Final = 7
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL as JSON writes it; after another backslash the same letters are only text."""
AGENT_SOURCE = "/sandherd/sandbox/"
"""With the sandbox's name after it, the only source that a worker may speak as."""


def read_event(subject: str, document: bytes) -> Envelope[EventData]:
    """The event in `document`, if it may stand on `subject`. Raises `ContractError`."""
    project, entity, event_type = read_event_subject(subject)
    model = EVENTS.get(event_type)
    if model is None:
        raise ContractError(
            Code.UNKNOWN_TYPE,
            f"{event_type[:80]!r} is no event of this version",
            field="type",
            remedy="upgrade this service, then requeue the dead letter",
        )
    event = parse(document, model)
    _check_agrees(event, event_type, project, entity)
    _check_keepable(event, document)
    return event


def read_command(subject: str, document: bytes) -> Envelope[Command]:
    """The command in `document`, if it may stand on `subject`. Raises `ContractError`."""
    for row in BY_NAME.values():
        names = row.match(subject) if row.mood is Mood.COMMAND else None
        if names is not None:
            if names["project"] == FLEET:
                raise ContractError(Code.UNSAFE_NAME, f"no project is called {FLEET}: it means all", field="project")
            command_type = row.name.removeprefix("command.")
            command = parse(document, COMMANDS[command_type])
            _check_agrees(command, command_type, names["project"], command.subject)
            return command
    raise ContractError(Code.UNKNOWN_TYPE, f"{subject[:120]!r} is no command of this version", field="type")


def _check_keepable(event: Envelope[Any], document: bytes) -> None:
    """Raise `ContractError` for an id that does not order by time, and for a NUL, which Postgres has no text for."""
    if event.id.version != _UUID_VERSION:
        raise ContractError(Code.INVALID_FIELD, "id: it is no UUIDv7", field="id", remedy="see RFC 9562, 5.7")
    if b"\\u0000" in document and _NUL.search(document):
        raise ContractError(
            Code.INVALID_FIELD, "data: a NUL is in a text", field="data", remedy="replace it, as by U+FFFD"
        )


def _check_agrees(said: Envelope[Any], said_type: str, project: str, entity: str) -> None:
    """Raise `ContractError` unless the envelope says what its subject says: the broker guards only the subject."""
    expected = {"type": said_type, "project": project, "subject": entity}
    if said_type.startswith("agent."):
        expected |= {"sandboxid": entity, "source": AGENT_SOURCE + entity}
    for field, value in expected.items():
        if getattr(said, field) != value:
            raise ContractError(
                Code.WRONG_SUBJECT,
                f"{field} is {str(getattr(said, field))[:80]!r}, but the subject says {value!r}",
                field=field,
            )
    if said.dataschema != schema_urn(said_type):
        raise ContractError(
            Code.UNKNOWN_VERSION, f"dataschema {said.dataschema[:80]!r} is not of this version", field="dataschema"
        )
