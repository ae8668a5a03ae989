"""`dead`: which messages could not be handled?"""

import json
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from event_ingest.queries.output import readable_text
from event_ingest.queries.pages import fit_page, project_filter
from event_ingest.queries.stream_reader import StoredMessage, broker_unavailable, read_messages
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.requests import DeadLetter, DeadLetters, ListDeadLetters
from sandherd.contracts.subjects import BY_NAME, PREFIX, project_of
from sandherd.service.cursors import read_cursor, write_cursor

STREAM: Final = "DEAD"
_POSITION_TYPES: Final = (int,)
"""The types of the values in a cursor."""
_WINDOW_SEQUENCES: Final = 64
"""Letters are read in windows of this number of sequences, the last window first: the broker reads only forward."""
_MAX_WINDOWS: Final = 64
"""Maximum number of windows that are read for one page."""
_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a window."""
_MAX_JSON_EXPANSION: Final = 6
"""Maximum bytes in JSON of a one-byte control character."""


async def list_dead_letters(bus: Bus, request: ListDeadLetters, project: str, max_bytes: int) -> DeadLetters:
    """Dead letters, newest first. A letter that is requested by its number has its payload.

    Raises `ContractError` for an unknown number, or an invalid cursor.
    """
    if request.number is not None:
        return DeadLetters(letters=[await _read_letter(bus, request.number, project, max_bytes)])
    before = read_cursor(request, project, request.cursor, _POSITION_TYPES)
    messages, unread = await _read_newest(bus, request, project, before[0] if before else None)
    page = await fit_page(messages, _parse_letter, limit=request.limit, max_bytes=max_bytes, available=len(messages))
    position = page.rows[-1].sequence if page.has_more else unread
    cursor = None if position is None else write_cursor(request, project, [position])
    return DeadLetters(letters=page.items, next_cursor=cursor)


async def _read_letter(bus: Bus, number: int, project: str, max_bytes: int) -> DeadLetter:
    messages = await read_messages(bus, STREAM, f"{PREFIX}.dead.>", first=number, limit=1, max_bytes=1)
    if not messages or messages[0].sequence != number or not _is_visible(messages[0], project):
        raise ContractError(
            Code.NOT_FOUND, f"there is no dead letter {number}", field="number", remedy="list the dead letters"
        )
    letter = _parse_letter(messages[0])
    return letter.model_copy(update={"payload": readable_text(messages[0].data, max_bytes // _MAX_JSON_EXPANSION)})


async def _read_newest(
    bus: Bus, request: ListDeadLetters, project: str, before: int | None
) -> tuple[list[StoredMessage], int | None]:
    """The letters before the sequence `before`, newest first; more than `request.limit`, if there are more.

    Letters of other projects are read, too, and left out. If that takes more than `_MAX_WINDOWS` windows, the second
    value is the sequence before which the next page begins; else it is None.
    """
    first, last = await _read_bounds(bus)
    end = last if before is None else min(last, before - 1)
    subject = BY_NAME["dead"].pattern({"service": request.service} if request.service else {})
    messages: list[StoredMessage] = []
    windows = 0
    while end >= first and len(messages) <= request.limit:
        if windows == _MAX_WINDOWS:
            return messages, end + 1
        windows += 1
        start = max(first, end - _WINDOW_SEQUENCES + 1)
        window = await read_messages(bus, STREAM, subject, first=start, limit=end - start + 1, max_bytes=_WINDOW_BYTES)
        messages += [
            _without_payload(message)
            for message in reversed(window)
            if message.sequence <= end and _is_visible(message, project)
        ]
        end = start - 1
    return messages, None


def _without_payload(message: StoredMessage) -> StoredMessage:
    """Drops the payload: a list does not show it, and the payloads of a page may have hundreds of MiB.

    Without a header for its size, the payload stays, because `_parse_letter` measures it.
    """
    return replace(message, data=b"") if message.headers.get("Sandherd-Size") else message


async def _read_bounds(bus: Bus) -> tuple[int, int]:
    try:
        state = (await bus.js.stream_info(STREAM)).state
    except BROKER_ERRORS as error:
        raise broker_unavailable(error) from error
    return state.first_seq, state.last_seq


def _is_visible(message: StoredMessage, project: str) -> bool:
    """Whether a request for this project may return the letter. The subject of the failed message names its project."""
    return project_filter(project) is None or project_of(message.headers.get("Sandherd-Subject", "")) == project


def _parse_letter(message: StoredMessage) -> DeadLetter:
    headers = message.headers
    return DeadLetter(
        number=message.sequence,
        service=headers.get("Sandherd-Service") or message.subject.split(".")[3],
        reason=_parse_reason(headers.get("Sandherd-Reason", "")),
        subject=headers.get("Sandherd-Subject", ""),
        stream=headers.get("Sandherd-Stream", ""),
        stream_sequence=_parse_number(headers.get("Sandherd-Stream-Sequence", "")),
        size=_parse_number(headers.get("Sandherd-Size", "")) or len(message.data),
        dead_at=message.at,
    )


def _parse_reason(text: str) -> Problem:
    try:
        return Problem.model_validate(json.loads(text))
    except (ValidationError, ValueError):
        return Problem(code=Code.INTERNAL, message="the dead letter has no valid reason")


def _parse_number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
