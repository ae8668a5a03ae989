"""Dead letters: what can't be handled is stored in DEAD, up to a limit per minute and source; the rest is counted.

A sandbox can publish anything on its own subjects. To store each of thousands of bad messages would cost all others
time and push out dead letters of theirs, so beyond a limit only their number is stored: in one summary each minute.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandherd.bus.connection import Bus
from sandherd.bus.fair_queue import Lane
from sandherd.bus.outcomes import Delivery
from sandherd.bus.secret_commands import storable
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.streams import Consumer
from sandherd.contracts.subjects import dead_subject
from sandherd.telemetry import logs

WINDOW: Final = 60.0
"""Seconds over which the dead letters of a source are counted."""
DEFAULT_LIMIT: Final = 60
_ROOM_FOR_REASON: Final = 16 * 1024
"""For the headers of a dead letter: a subject, and a reason of a few hundred characters."""
_log: Final = logs.get("consuming")

Suppressed = Callable[[str, str], None]
"""Called for each dead letter that was not stored, with the consumer's name and the code."""


@dataclass(slots=True)
class _Source:
    """The dead letters of one source since the window began."""

    since: float
    count: int = 0
    suppressed: int = 0
    last: Delivery | None = None


class DeadLetterLimiter:
    """Which dead letters are stored. Pure; `now` is in seconds and only ever grows."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sources: dict[Lane, _Source] = {}

    def allows(self, lane: Lane, delivery: Delivery, now: float) -> bool:
        """Count a dead letter of this source. False if it is not to be stored."""
        source = self._sources.setdefault(lane, _Source(now))
        source.count += 1
        if source.count <= self._limit:
            return True
        source.suppressed += 1
        source.last = delivery
        return False

    def ended(self, now: float) -> list[tuple[Delivery, int]]:
        """For each source whose window is over: its last dead letter that was not stored, and how many there were."""
        over = [lane for lane, source in self._sources.items() if now - source.since >= WINDOW]
        found = [self._sources.pop(lane) for lane in over]
        return [(source.last, source.suppressed) for source in found if source.last is not None]


class DeadLetters:
    """Stores the dead letters of one consumer."""

    def __init__(
        self, bus: Bus, consumer: Consumer, limit: int = DEFAULT_LIMIT, suppressed: Suppressed | None = None
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._limiter = DeadLetterLimiter(limit)
        self._suppressed = suppressed or (lambda _consumer, _code: None)

    async def add(self, lane: Lane, delivery: Delivery, problem: Problem, now: float) -> None:
        """Store a dead letter, or count it. Returns when it is safe, and raises what `publish_stored` raises."""
        if not self._limiter.allows(lane, delivery, now):
            self._suppressed(self._consumer.name, problem.code)
            return
        _log.warning("dead letter", subject=delivery.subject, code=problem.code, problem=problem.message)
        await self._store(delivery, problem, f"{delivery.stream_sequence}")

    async def summarise(self, now: float) -> None:
        """Store one dead letter for all those of a source that were counted only, once its window is over."""
        for last, count in self._limiter.ended(now):
            _log.error("dead letters not stored", subject=last.subject, dropped=count)
            text = f"{count} further messages of this source could not be handled within {WINDOW:g} s and were dropped"
            problem = Problem(code=Code.REFUSED, message=text, remedy="this is the last of them; end its sandbox")
            await self._store(last, problem, f"{last.stream_sequence}-summary")

    async def _store(self, delivery: Delivery, problem: Problem, number: str) -> None:
        service = self._consumer.service.value
        # A message as large as the broker takes has no room for the reason: its end is cut off, not the connection.
        room = self._bus.client.max_payload - _ROOM_FOR_REASON
        await self._bus.publish_stored(
            dead_subject(service, problem.code),
            storable(delivery)[:room],
            msg_id=f"dead-{self._consumer.name}-{delivery.stream}-{number}",
            headers=dead_headers(service, delivery, problem),
        )


def dead_headers(service: str, delivery: Delivery, problem: Problem) -> dict[str, str]:
    """What a dead letter says of itself: from where, why, and what it was."""
    return {
        "Sandherd-Service": service,
        "Sandherd-Reason": json.dumps(problem.model_dump(mode="json", exclude_none=True)),
        "Sandherd-Subject": delivery.subject,
        "Sandherd-Stream": delivery.stream,
        "Sandherd-Stream-Sequence": str(delivery.stream_sequence),
        "Sandherd-Size": str(len(delivery.data)),
    }


def revived(msg_subject: str, data: bytes, headers: Mapping[str, str], at: datetime) -> Delivery:
    """A dead letter as the delivery it once was. Raises `ContractError` if it is no dead letter."""
    try:
        return Delivery(
            subject=headers["Sandherd-Subject"],
            data=data,
            stream=headers["Sandherd-Stream"],
            stream_sequence=int(headers["Sandherd-Stream-Sequence"]),
            deliveries=1,
            at=at,
        )
    except (KeyError, ValueError):
        raise ContractError(Code.INVALID_FIELD, f"{msg_subject} holds no dead letter of ours") from None
