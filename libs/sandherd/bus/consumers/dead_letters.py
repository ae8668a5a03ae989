"""Stores messages that can't be handled as dead letters in the stream DEAD, with a limit per minute and source.

A sandbox can publish anything on its own subjects. Storing each of thousands of invalid messages would delay other
sources and evict their dead letters from DEAD. So dead letters above the limit are only counted, and each minute one
summary is stored.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.fair_queue import Lane
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.bus.consumers.secret_commands import storable_payload
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.headers import (
    DEAD_EXCERPT,
    DEAD_REASON,
    DEAD_SEQUENCE,
    DEAD_SERVICE,
    DEAD_SIZE,
    DEAD_STREAM,
    DEAD_SUBJECT,
)
from sandherd.contracts.streams import Consumer
from sandherd.contracts.subjects import dead_subject
from sandherd.telemetry import logs

WINDOW_SECONDS: Final = 60.0
"""The time over which the dead letters of a source are counted."""
DEFAULT_DEAD_LETTER_LIMIT: Final = 60
"""Maximum number of dead letters of a source that are stored per window."""
PROJECT_SHARE: Final = 5
"""The limit for all sources of a project, as a multiple of the limit of one source."""
PROJECT_BYTES: Final = 1024 * 1024
"""Maximum payload bytes of one project's dead letters per window. Of further letters, only an excerpt is stored. With
this limit and 300 letters per window, a project needs at least 13 h to replace all other letters in DEAD (1 GiB)."""
EXCERPT_BYTES: Final = 256
"""The size of an excerpt. A letter with an excerpt can be read, but not requeued."""
_HEADER_BYTES: Final = 16 * 1024
"""Bytes reserved for the headers of a dead letter: a subject, and a reason of a few hundred characters."""
_log: Final = logs.get("dead_letters")

OnSuppressed = Callable[[str, str], None]
"""A function that is called, with the consumer's name and the error code, for each dead letter that is not stored."""


@dataclass(slots=True)
class _Source:
    """Counts the dead letters of one source in the current window."""

    since: float
    count: int = 0
    size: int = 0
    suppressed: int = 0
    last: Delivery | None = None

    def suppress(self, delivery: Delivery) -> None:
        """Count a dead letter that is not stored."""
        self.suppressed += 1
        self.last = delivery


class DeadLetterLimiter:
    """Decides which dead letters are stored, and how many bytes of them. Pure. `now` is in seconds, and only increases.

    There is a limit for each sandbox and task, and one for each project, because clients can invent names of tasks.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sources: dict[Lane, _Source] = {}
        self._projects: dict[str, _Source] = {}

    def allows(self, lane: Lane, delivery: Delivery, now: float) -> int | None:
        """Count a dead letter of this source. Returns how many of its bytes to store, or None to store nothing."""
        project = self._projects.setdefault(lane.project, _Source(now))
        project.count += 1
        if project.count > self._limit * PROJECT_SHARE:
            project.suppress(delivery)
            return None
        entity = self._sources.setdefault(lane, _Source(now))
        entity.count += 1
        if entity.count > self._limit:
            entity.suppress(delivery)
            return None
        size = len(delivery.data)
        if project.size + size > PROJECT_BYTES:
            return min(size, EXCERPT_BYTES)
        project.size += size
        return size

    def pop_ended_windows(self, now: float) -> list[tuple[Delivery, int]]:
        """Remove the windows that have ended. Returns the last letter that was not stored of each, and their number."""
        ended = [*_pop_ended(self._projects, now), *_pop_ended(self._sources, now)]
        return [(source.last, source.suppressed) for source in ended if source.last is not None]


_Key = TypeVar("_Key", str, Lane)


def _pop_ended(sources: dict[_Key, _Source], now: float) -> list[_Source]:
    return [
        sources.pop(key) for key in [key for key, source in sources.items() if now - source.since >= WINDOW_SECONDS]
    ]


class DeadLetterStore:
    """Stores the dead letters of one consumer."""

    def __init__(
        self,
        bus: Bus,
        consumer: Consumer,
        limit: int = DEFAULT_DEAD_LETTER_LIMIT,
        suppressed: OnSuppressed | None = None,
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._limiter = DeadLetterLimiter(limit)
        self._suppressed = suppressed or (lambda _consumer, _code: None)

    async def add(self, lane: Lane, delivery: Delivery, problem: Problem, now: float) -> None:
        """Store a dead letter, or count it. Returns when it is acknowledged. Raises the errors of `publish_stored`."""
        size = self._limiter.allows(lane, delivery, now)
        if size is None:
            self._suppressed(self._consumer.name, problem.code)
            return
        _log.warning(
            "message stored as dead letter", subject=delivery.subject, code=problem.code, problem=problem.message
        )
        await self._store(delivery, problem, f"{delivery.stream_sequence}", size)

    async def summarise(self, now: float) -> None:
        """Store a summary for each source whose window has ended, and of which dead letters were only counted."""
        for last, count in self._limiter.pop_ended_windows(now):
            _log.error("dead letters dropped", subject=last.subject, dropped=count)
            dropped = f"{count} further dead letters of this source were dropped within {WINDOW_SECONDS:g} s"
            text = f"{dropped}; this is the last"
            problem = Problem(code=Code.REFUSED, message=text, remedy="end its sandbox")
            await self._store(last, problem, f"{last.stream_sequence}-summary", EXCERPT_BYTES)

    async def _store(self, delivery: Delivery, problem: Problem, number: str, size: int) -> None:
        service = self._consumer.service.value
        # The end of a message of maximum size is omitted, because with the headers it would exceed `max_payload`, and
        # the broker would close the connection.
        payload = storable_payload(delivery)
        excerpt = payload[: min(size, self._bus.client.max_payload - _HEADER_BYTES)]
        await self._bus.publish_stored(
            dead_subject(service, problem.code),
            excerpt,
            msg_id=f"dead-{self._consumer.name}-{delivery.stream}-{number}",
            headers=dead_headers(service, delivery, problem, excerpt=len(excerpt) < len(payload)),
        )


def dead_headers(service: str, delivery: Delivery, problem: Problem, *, excerpt: bool = False) -> dict[str, str]:
    """The headers of a dead letter: service, reason, origin of the message, and whether only an excerpt is stored."""
    headers = {
        DEAD_SERVICE: service,
        DEAD_REASON: json.dumps(problem.model_dump(mode="json", exclude_none=True)),
        DEAD_SUBJECT: delivery.subject,
        DEAD_STREAM: delivery.stream,
        DEAD_SEQUENCE: str(delivery.stream_sequence),
        DEAD_SIZE: str(len(delivery.data)),
    }
    return headers | {DEAD_EXCERPT: "true"} if excerpt else headers


def original_delivery(msg_subject: str, data: bytes, headers: Mapping[str, str], at: datetime) -> Delivery:
    """The original delivery of a dead letter. Raises `ContractError` if it is not a dead letter, or only an excerpt."""
    if headers.get(DEAD_EXCERPT) is not None:
        raise ContractError(
            Code.REFUSED,
            f"{msg_subject} has only the beginning of the message",
            remedy="publish the message again; its project had too many dead letters to store them completely",
        )
    try:
        return Delivery(
            subject=headers[DEAD_SUBJECT],
            data=data,
            stream=headers[DEAD_STREAM],
            stream_sequence=int(headers[DEAD_SEQUENCE]),
            deliveries=1,
            at=at,
        )
    except (KeyError, ValueError):
        raise ContractError(Code.INVALID_FIELD, f"{msg_subject} has no dead letter of this herd") from None
