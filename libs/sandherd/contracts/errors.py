"""What can be wrong with a message: one typed error with a code, the field and a remedy."""

from enum import StrEnum
from typing import Any, Final

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import from_json

from sandherd.contracts.model import Model
from sandherd.contracts.validation_texts import validation_text

_MAX_PART: Final = 64
_MAX_FIELD: Final = 200
_ABSENT: Final = object()
_Path = tuple[int | str, ...]


class Code(StrEnum):
    """Why something was refused. The wire value; a published one is never renamed."""

    INVALID_JSON = "invalid_json"
    """The message is no JSON, or has numbers that JSON does not have. Change the message."""
    INVALID_FIELD = "invalid_field"
    """`field` is missing, unknown, or has a value that the schema or a rule does not permit. Change it."""
    UNKNOWN_TYPE = "unknown_type"
    """The service does not know a type of this name: it is misspelled, or of a later version."""
    UNKNOWN_VERSION = "unknown_version"
    """`dataschema` is of another version of the type."""
    WRONG_SUBJECT = "wrong_subject"
    """The document does not match the subject on which it was published: its `type`, `project`, `subject` or source."""
    TOO_LARGE = "too_large"
    """The message, or what it would store, exceeds a maximum that the message states."""
    UNSAFE_NAME = "unsafe_name"
    """A name is no token of a subject (`^[a-z0-9][a-z0-9-]{0,62}$`), or is reserved."""
    NOT_FOUND = "not_found"
    """What `field` names does not exist, or no longer."""
    CONFLICT = "conflict"
    """It contradicts what exists: the name is taken by something else, or the state does not permit it (any more)."""
    REFUSED = "refused"
    """It is valid, and not permitted here: by a limit, a setting, or what a runtime or an agent can do. A retry helps
    only after that has changed."""
    BUSY = "busy"
    """There is no capacity now, or the request waited too long. Retry later: after `retry_after_seconds`, if given."""
    UNAVAILABLE = "unavailable"
    """A part that is needed does not respond, such as the broker, the database or a worker. Retry."""
    INTERNAL = "internal"
    """An error of the service, which is in its log. The command or request may have taken effect."""


class Problem(Model):
    """A refusal on the wire: the `error` of a reply, or the reason of a dead letter."""

    model_config = ConfigDict(frozen=True)

    code: Code
    message: str
    field: str | None = None
    remedy: str | None = None
    retry_after_seconds: float | None = Field(default=None, exclude_if=lambda seconds: seconds is None)
    """With `busy`: how long to wait before the next request."""


class ContractError(ValueError):
    """A message that violates its contract. `problem` has the code, the field and the remedy."""

    def __init__(self, code: Code, message: str, *, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(code=code, message=message, field=field, remedy=remedy)

    @classmethod
    def from_validation(cls, error: ValidationError, document: bytes = b"") -> "ContractError":
        """The first error that pydantic found, without the input's value: it may contain a secret.

        With the JSON document that was read, `field` is a path in it.
        """
        first = error.errors(include_url=False, include_input=False)[0]
        field = _field_name(_path_in(document, first["loc"], missing=first["type"] == "missing"))
        code = Code.INVALID_JSON if first["type"] == "json_invalid" else Code.INVALID_FIELD
        prefix = f"{field}: " if field else ""
        return cls(code, prefix + validation_text(first["type"], first["msg"], first.get("ctx", {})), field=field)


def _path_in(document: bytes, path: _Path, *, missing: bool) -> _Path:
    """The path without what the document does not have: pydantic adds the kind of a harness, and the like."""
    try:
        value = from_json(document)
    except ValueError:
        return path
    found: list[int | str] = []
    inside: Any = None
    for part in path:
        inside = _member(value, part)
        if inside is not _ABSENT:
            value = inside
            found.append(part)
    return (*found, path[-1]) if missing and inside is _ABSENT else tuple(found)


def _member(value: Any, part: int | str) -> Any:
    """The member of an object or an array; `_ABSENT` if there is none."""
    if isinstance(value, dict):
        return value.get(part, _ABSENT)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _ABSENT


def _field_name(path: tuple[int | str, ...]) -> str | None:
    """The path to a field, as one short printable line: a hostile key may be long, or contain terminal escapes."""
    name = ".".join(str(part)[:_MAX_PART] for part in path)[:_MAX_FIELD]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name) or None
