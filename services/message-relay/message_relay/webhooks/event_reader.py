"""Reads the events of a project from the stream EVENTS, and finds the position of a time or sequence in it."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from message_relay.broker_retries import ReplyT, until_reply
from message_relay.webhooks.queue import QueuedEvent
from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, first_since, read_batch
from sandherd.bus.stream_bounds import StreamBounds, read_bounds
from sandherd.client.events import decoder
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.subjects import PREFIX, read_event_subject
from sandherd.telemetry import logs

STREAM: Final = "EVENTS"
_log: Final = logs.get("webhooks.stream")
_MAX_BATCH_MESSAGES: Final = 200
_MAX_BATCH_BYTES: Final = 1024 * 1024


def subject_of(project: str) -> str:
    """The subject pattern of all events of a project."""
    return f"{PREFIX}.event.{project}.>"


def item_of(record: WebhookRecord, stored: StoredMessage) -> QueuedEvent | None:
    """The event to send for a stored message; None if the webhook does not select it, or if it is invalid."""
    try:
        _, entity, event_type = read_event_subject(stored.subject)
    except ContractError:
        return None
    if not record.matches(entity, event_type):
        return None
    event = decoder.from_live(stored.subject, stored.data)
    if event is None:  # the history refuses it, too
        return None
    body = event.model_dump_json(exclude_none=True).encode()
    return QueuedEvent(stored.sequence, entity, event_type, str(event.id), body, stored.at)


class EventReader:
    """Reads EVENTS. Every method raises one of `READ_ERRORS` while the broker is unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def after(self, project: str, sequence: int) -> list[StoredMessage]:
        """The next events of a project after this sequence; empty if there are none now."""
        return await read_batch(
            self._bus,
            STREAM,
            subject_of(project),
            first=sequence + 1,
            limit=_MAX_BATCH_MESSAGES,
            max_bytes=_MAX_BATCH_BYTES,
        )

    async def at(self, project: str, sequence: int) -> StoredMessage | None:
        """The event of a project with this sequence; None if the stream no longer has it."""
        found = await read_batch(
            self._bus, STREAM, subject_of(project), first=sequence, limit=1, max_bytes=_MAX_BATCH_BYTES
        )
        return found[0] if found and found[0].sequence == sequence else None

    async def bounds(self) -> StreamBounds:
        """The first and the last sequence that the stream has now."""
        return await read_bounds(self._bus, STREAM)

    async def position(self, project: str, start: str | int | datetime, now: datetime) -> int:
        """The sequence before the first event to deliver, for a `start` as in a request.

        Raises `ContractError` for a start in the future.
        """
        bounds = await self.bounds()
        oldest, last = max(bounds.first - 1, 0), bounds.last
        if start == "all":
            return oldest
        if isinstance(start, datetime):
            if start > now:
                raise _in_future("that time is in the future")
            found = await first_since(self._bus, STREAM, subject_of(project), start)
            return found - 1 if found else last
        if isinstance(start, int):
            if start > last + 1:
                raise _in_future(f"{start} is after the next sequence, {last + 1}")
            return max(start - 1, oldest)
        return last


async def until_read(read: Callable[[], Awaitable[ReplyT]]) -> ReplyT:
    """Repeat a read until the broker replies, and return its result."""

    def log_failure(attempt: int, error: Exception) -> None:
        _log.warning("events for a webhook not read, retrying", attempt=attempt, error=repr(error))

    return await until_reply(read, log_failure, READ_ERRORS)


def _in_future(text: str) -> ContractError:
    remedy = "name `new`, `all`, a sequence that the stream has, or a time in the past"
    return ContractError(Code.INVALID_FIELD, f"start: {text}", field="start", remedy=remedy)
