"""`output`: what did its terminal show?"""

from typing import Final

from event_ingest.answers.cursors import read_cursor, write_cursor
from event_ingest.answers.paging import Cut, cut, scope
from event_ingest.answers.reaching import Kept, reach
from sandherd.bus.connection import Bus
from sandherd.contracts.requests import AskOutput, Output, OutputChunk
from sandherd.contracts.subjects import OUTPUT

STREAM: Final = "OUTPUT"
_PLACE: Final = (int,)
_LONGEST: Final = 6
"""A control character of one byte is so many in JSON."""


async def answer_output(bus: Bus, question: AskOutput, project: str, budget: int) -> Output:
    """Terminal output, oldest first. Raises `ContractError` for a cursor that means nothing."""
    after = read_cursor(question, project, question.cursor, _PLACE)
    subject = OUTPUT.pattern({"sandbox": question.sandbox} | _bound(project))
    first = after[0] + 1 if after else 1
    kept = await reach(bus, STREAM, subject, first=first, most=question.limit + 1, most_bytes=budget)
    page = await _cut(kept, question.limit, budget)
    more = page.more or (bool(kept) and await _is_more(bus, subject, page))
    cursor = write_cursor(question, project, [page.rows[-1].sequence]) if more else None
    return Output(chunks=page.items, next_cursor=cursor)


def _bound(project: str) -> dict[str, str]:
    return {} if scope(project) is None else {"project": project}


async def _cut(kept: list[Kept], limit: int, budget: int) -> Cut[Kept, OutputChunk]:
    return await cut(kept, lambda message: _chunk(message, budget), limit=limit, budget=budget, found=len(kept))


async def _is_more(bus: Bus, subject: str, page: Cut[Kept, OutputChunk]) -> bool:
    """The broker, too, ends a batch by its bytes."""
    return bool(await reach(bus, STREAM, subject, first=page.rows[-1].sequence + 1, most=1, most_bytes=1))


def _chunk(message: Kept, budget: int) -> OutputChunk:
    return OutputChunk(
        stream_sequence=message.sequence, time=message.at, text=readable(message.data, budget // _LONGEST)
    )


def readable(data: bytes, most: int) -> str:
    """Bytes as text, with replacement characters; what would not fit an answer is cut off, and said to be."""
    text = data[:most].decode(errors="replace")
    return text if len(data) <= most else f"{text}\n[{len(data) - most} more bytes]"
