"""`output`: what did a sandbox's terminal show?"""

from typing import Final

from event_ingest.queries.pages import FittedPage, fit_page, project_filter
from event_ingest.queries.stream_reader import StoredMessage, read_messages
from sandherd.bus.connection import Bus
from sandherd.contracts.requests import GetOutput, Output, OutputChunk
from sandherd.contracts.subjects import OUTPUT
from sandherd.service.cursors import read_cursor, write_cursor

STREAM: Final = "OUTPUT"
_POSITION_TYPES: Final = (int,)
"""The types of the values in a cursor."""
_MAX_JSON_EXPANSION: Final = 6
"""Maximum bytes in JSON of a one-byte control character."""


async def list_output(bus: Bus, request: GetOutput, project: str, max_bytes: int) -> Output:
    """Terminal output, oldest first. Raises `ContractError` for an invalid cursor."""
    after = read_cursor(request, project, request.cursor, _POSITION_TYPES)
    subject = OUTPUT.pattern({"sandbox": request.sandbox} | _project_tokens(project))
    first = after[0] + 1 if after else 1
    messages = await read_messages(bus, STREAM, subject, first=first, limit=request.limit + 1, max_bytes=max_bytes)
    page = await _fit_page(messages, request.limit, max_bytes)
    has_more = page.has_more or (bool(messages) and await _has_more(bus, subject, page))
    cursor = write_cursor(request, project, [page.rows[-1].sequence]) if has_more else None
    return Output(chunks=page.items, next_cursor=cursor)


def _project_tokens(project: str) -> dict[str, str]:
    return {} if project_filter(project) is None else {"project": project}


async def _fit_page(
    messages: list[StoredMessage], limit: int, max_bytes: int
) -> FittedPage[StoredMessage, OutputChunk]:
    return await fit_page(
        messages, lambda message: _chunk(message, max_bytes), limit=limit, max_bytes=max_bytes, available=len(messages)
    )


async def _has_more(bus: Bus, subject: str, page: FittedPage[StoredMessage, OutputChunk]) -> bool:
    """Whether there are more messages: the broker may have ended the batch because of its size."""
    return bool(await read_messages(bus, STREAM, subject, first=page.rows[-1].sequence + 1, limit=1, max_bytes=1))


def _chunk(message: StoredMessage, max_bytes: int) -> OutputChunk:
    return OutputChunk(
        stream_sequence=message.sequence,
        time=message.at,
        text=readable_text(message.data, max_bytes // _MAX_JSON_EXPANSION),
    )


def readable_text(data: bytes, limit: int) -> str:
    """The first `limit` bytes as text, with replacement characters for invalid ones.

    If there are more bytes, the text ends with their number.
    """
    text = data[:limit].decode(errors="replace")
    return text if len(data) <= limit else f"{text}\n[{len(data) - limit} more bytes]"
