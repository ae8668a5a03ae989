"""The error for an invalid or refused message: a code, a text, the field and a remedy."""

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
    """The reason of a refusal. The values are part of messages, so a value is never renamed after a release."""

    INVALID_JSON = "invalid_json"
    """The message is not valid JSON. `NaN` and `Infinity` are not valid either. Correct the message."""
    INVALID_FIELD = "invalid_field"
    """`field` is missing or unknown, or has a value that the schema or a rule does not permit. Correct the field."""
    UNKNOWN_TYPE = "unknown_type"
    """The service does not know the type of the message: the type is misspelled, or was added in a later version."""
    UNKNOWN_VERSION = "unknown_version"
    """`dataschema` names another version of the type."""
    WRONG_SUBJECT = "wrong_subject"
    """The message's `type`, `project`, `subject` or `source` does not match the NATS subject it was published to."""
    TOO_LARGE = "too_large"
    """The message, or the data to be stored, is too large. The text of the error states the maximum."""
    UNSAFE_NAME = "unsafe_name"
    """A name is reserved, or can't be used in a subject: it does not match `^[a-z0-9][a-z0-9-]{0,62}$`."""
    NOT_FOUND = "not_found"
    """The object that `field` names does not exist, or was deleted."""
    CONFLICT = "conflict"
    """The request conflicts with the current state: another object has the name, or the object's state does not permit
    the request (any more)."""
    REFUSED = "refused"
    """The request is valid, but not permitted: a limit or a setting forbids it, or a runtime or an agent can't do it.
    Retry only after this has changed."""
    BUSY = "busy"
    """The service has no capacity now, or the request waited too long. Retry later; if the error has
    `retry_after_seconds`, after that time."""
    UNAVAILABLE = "unavailable"
    """A dependency does not respond, such as the broker, the database or a worker. Retry."""
    INTERNAL = "internal"
    """An unexpected error in the service; its log has the details. The command or request may have taken effect."""


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
        """The first error that pydantic found. The text does not contain the invalid value, which may be a secret.

        `document` is the JSON text that was validated. If it is given, `field` is a path in it.
        """
        first = error.errors(include_url=False, include_input=False)[0]
        field = _field_name(_path_in(document, first["loc"], missing=first["type"] == "missing"))
        code = Code.INVALID_JSON if first["type"] == "json_invalid" else Code.INVALID_FIELD
        prefix = f"{field}: " if field else ""
        return cls(code, prefix + validation_text(first["type"], first["msg"], first.get("ctx", {})), field=field)


def _path_in(document: bytes, path: _Path, *, missing: bool) -> _Path:
    """The path without the parts that are not in the document: pydantic adds, for example, the kind of a harness.

    The last part is kept if it is the name of a missing field.
    """
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
    """The path to a field, as one short printable line. An attacker's key may be long, or contain terminal escapes."""
    name = ".".join(str(part)[:_MAX_PART] for part in path)[:_MAX_FIELD]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name) or None
