"""Cursors of paged replies: a text with the position where a page ended, which is valid only for the same request."""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import Request

Position = list[Any]
"""The values of the sort columns in the last row of a page: numbers, texts, and times as texts."""

_SEAL_BYTES: Final = 12
_BIGINT: Final = 2**63 - 1
"""The largest number of a position: the maximum of Postgres's type `bigint`."""
_PAGE_FIELDS: Final = {"limit", "cursor", "direction"}
"""Fields of a request that may change from one page to the next."""


def write_cursor(request: Request[Any], project: str, position: Sequence[Any]) -> str:
    """The cursor for `position` in the reply to this request."""
    body = json.dumps(list(position), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_seal(request, project, body) + body).decode().rstrip("=")


def read_cursor(request: Request[Any], project: str, cursor: str | None, types: Sequence[type]) -> Position | None:
    """The position in a cursor; None if `cursor` is None. `types` are the types of the position's values.

    Raises `ContractError` for a cursor that was changed, belongs to another request, or is invalid: with the first page
    instead, a client would get rows again or miss some without noticing.
    """
    if cursor is None:
        return None
    try:
        sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        seal, body = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        position = json.loads(body)
    except (binascii.Error, ValueError):
        raise _invalid_cursor() from None
    if seal != _seal(request, project, body) or not _is_position(position, types):
        raise _invalid_cursor()
    return list(position)


def _is_position(position: Any, types: Sequence[type]) -> bool:
    """Whether a database accepts these values. It is checked, because clients can compute the seal of any position."""
    if not isinstance(position, list) or [type(value) for value in position] != list(types):
        return False
    numbers = [abs(value) for value in position if isinstance(value, int | float)]
    texts = [value for value in position if isinstance(value, str)]
    return all(number <= _BIGINT for number in numbers) and all(map(_is_storable, texts))


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def read_time(text: str) -> datetime:
    """A time in a position. Raises `ContractError` if it is not a time, or one that no row can have."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid_cursor() from None
    if time.tzinfo is None or not 2000 <= time.year < 2200:
        raise _invalid_cursor()
    return time


def read_id(text: str) -> UUID:
    """An id in a position. Raises `ContractError` if it is not a UUID."""
    try:
        return UUID(text)
    except ValueError:
        raise _invalid_cursor() from None


def _seal(request: Request[Any], project: str, body: bytes) -> bytes:
    """A checksum against mistakes. It need not prevent forgery: a forged cursor returns only what a user may read."""
    filters = request.model_dump_json(exclude=_PAGE_FIELDS)
    return hashlib.sha256(b"\0".join((request.type.encode(), project.encode(), filters.encode(), body))).digest()[
        :_SEAL_BYTES
    ]


def _invalid_cursor() -> ContractError:
    return ContractError(
        Code.INVALID_FIELD,
        "cursor: not valid for this request",
        field="cursor",
        remedy="omit the cursor for the first page; use a cursor only with the filters that returned it",
    )
