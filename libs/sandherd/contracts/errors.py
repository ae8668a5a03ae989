"""What can be wrong with a message: one typed error with a code, the field and a remedy."""

from enum import StrEnum
from typing import Final

from pydantic import ConfigDict, Field, ValidationError

from sandherd.contracts.model import Model
from sandherd.contracts.validation_texts import validation_text

_MAX_PART: Final = 64
_MAX_FIELD: Final = 200


class Code(StrEnum):
    """Why something was refused. The wire value; a published one is never renamed."""

    INVALID_JSON = "invalid_json"
    INVALID_FIELD = "invalid_field"
    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_VERSION = "unknown_version"
    WRONG_SUBJECT = "wrong_subject"
    TOO_LARGE = "too_large"
    UNSAFE_NAME = "unsafe_name"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    REFUSED = "refused"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


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
    def from_validation(cls, error: ValidationError) -> "ContractError":
        """The first error that pydantic found, without the input's value: it may contain a secret."""
        first = error.errors(include_url=False, include_input=False)[0]
        field = _field_name(first["loc"])
        code = Code.INVALID_JSON if first["type"] == "json_invalid" else Code.INVALID_FIELD
        prefix = f"{field}: " if field else ""
        return cls(code, prefix + validation_text(first["type"], first["msg"], first.get("ctx", {})), field=field)


def _field_name(path: tuple[int | str, ...]) -> str | None:
    """The path to a field, as one short printable line: a hostile key may be long, or contain terminal escapes."""
    name = ".".join(str(part)[:_MAX_PART] for part in path)[:_MAX_FIELD]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name) or None
