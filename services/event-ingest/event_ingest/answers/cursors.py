"""Where a page ended, as text that only the same question can be asked on with."""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import Request

Place = list[Any]
"""The values of the order's columns in the last row of a page: numbers, texts and times as text."""

_SEAL_BYTES: Final = 12
_OF_THE_PAGE: Final = {"limit", "cursor", "direction"}
"""What may change from one page of a question to the next."""


def write_cursor(question: Request[Any], project: str, place: Sequence[Any]) -> str:
    """The cursor for `place` in the answer to this question."""
    body = json.dumps(list(place), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_seal(question, project, body) + body).decode().rstrip("=")


def read_cursor(question: Request[Any], project: str, cursor: str | None, kinds: Sequence[type]) -> Place | None:
    """The place in a cursor, None if there is none. `kinds` are the types of its values.

    Raises `ContractError` for one that was changed, is of another question, or is none at all: page one in its place
    would show the same things twice, or skip some, and nobody would notice.
    """
    if cursor is None:
        return None
    try:
        sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        seal, body = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        place = json.loads(body)
    except (binascii.Error, ValueError):
        raise _refusal() from None
    if seal != _seal(question, project, body) or [type(value) for value in place] != list(kinds):
        raise _refusal()
    return list(place)


def _seal(question: Request[Any], project: str, body: bytes) -> bytes:
    """Against mistakes, not against people: whoever makes a cursor up gets a page of what they may read anyway."""
    asked = question.model_dump_json(exclude=_OF_THE_PAGE)
    return hashlib.sha256(b"\0".join((question.type.encode(), project.encode(), asked.encode(), body))).digest()[
        :_SEAL_BYTES
    ]


def _refusal() -> ContractError:
    return ContractError(
        Code.INVALID_FIELD,
        "cursor: not one that was given for this question",
        field="cursor",
        remedy="ask without a cursor for the first page; a cursor goes with the filters it was given for",
    )
