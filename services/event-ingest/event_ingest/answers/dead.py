"""`dead`: what could not be handled?"""

import json
from typing import Final

import nats.errors
import nats.js.errors
from pydantic import ValidationError

from event_ingest.answers.cursors import read_cursor, write_cursor
from event_ingest.answers.output import readable
from event_ingest.answers.paging import cut, scope
from event_ingest.answers.reaching import Kept, broker_away, reach
from sandherd.bus.connection import Bus
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.requests import AskDead, DeadLetter, DeadLetters
from sandherd.contracts.subjects import BY_NAME, PREFIX

STREAM: Final = "DEAD"
_PLACE: Final = (int,)
_WINDOW: Final = 64
"""Letters are read so many places at a time, from the end: the broker reads only forward."""
_WINDOW_BYTES: Final = 64 * 1024 * 1024
_LONGEST: Final = 6


async def answer_dead(bus: Bus, question: AskDead, project: str, budget: int) -> DeadLetters:
    """Dead letters, newest first; with its payload where one is asked for by number.

    Raises `ContractError` for a number that is not there, or a cursor that means nothing.
    """
    if question.number is not None:
        return DeadLetters(letters=[await _one(bus, question.number, project, budget)])
    before = read_cursor(question, project, question.cursor, _PLACE)
    kept = await _newest(bus, question, project, before[0] if before else None)
    page = await cut(kept, _letter, limit=question.limit, budget=budget, found=len(kept))
    cursor = write_cursor(question, project, [page.rows[-1].sequence]) if page.more else None
    return DeadLetters(letters=page.items, next_cursor=cursor)


async def _one(bus: Bus, number: int, project: str, budget: int) -> DeadLetter:
    found = await reach(bus, STREAM, f"{PREFIX}.dead.>", first=number, most=1, most_bytes=1)
    if not found or found[0].sequence != number or not _concerns(found[0], project):
        raise ContractError(
            Code.NOT_FOUND, f"there is no dead letter {number}", field="number", remedy="see `sandherd dead list`"
        )
    letter = _letter(found[0])
    return letter.model_copy(update={"payload": readable(found[0].data, budget // _LONGEST)})


async def _newest(bus: Bus, question: AskDead, project: str, before: int | None) -> list[Kept]:
    """The letters before a place, newest first; one more than the page has room for."""
    first, last = await _ends(bus)
    end = last if before is None else min(last, before - 1)
    subject = BY_NAME["dead"].pattern({"service": question.service} if question.service else {})
    found: list[Kept] = []
    while end >= first and len(found) <= question.limit:
        start = max(first, end - _WINDOW + 1)
        window = await reach(bus, STREAM, subject, first=start, most=end - start + 1, most_bytes=_WINDOW_BYTES)
        found += [kept for kept in reversed(window) if kept.sequence <= end and _concerns(kept, project)]
        end = start - 1
    return found


async def _ends(bus: Bus) -> tuple[int, int]:
    try:
        state = (await bus.js.stream_info(STREAM)).state
    except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
        raise broker_away(error) from error
    return state.first_seq, state.last_seq


def _concerns(kept: Kept, project: str) -> bool:
    """Whether the letter is of this project: the name stands in the subject it came on."""
    tokens = kept.headers.get("Sandherd-Subject", "").split(".")
    return scope(project) is None or project in {tokens[-1], *tokens[3:4]}


def _letter(kept: Kept) -> DeadLetter:
    headers = kept.headers
    return DeadLetter(
        number=kept.sequence,
        service=headers.get("Sandherd-Service") or kept.subject.split(".")[3],
        reason=_reason(headers.get("Sandherd-Reason", "")),
        subject=headers.get("Sandherd-Subject", ""),
        stream=headers.get("Sandherd-Stream", ""),
        stream_sequence=_number(headers.get("Sandherd-Stream-Sequence", "")),
        size=_number(headers.get("Sandherd-Size", "")) or len(kept.data),
        dead_at=kept.at,
    )


def _reason(text: str) -> Problem:
    try:
        return Problem.model_validate(json.loads(text))
    except (ValidationError, ValueError):
        return Problem(code=Code.INTERNAL, message="the letter does not say why")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
