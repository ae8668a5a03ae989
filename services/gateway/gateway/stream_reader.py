"""Reads EVENTS from a sequence number on, for one project or one of its sandboxes, in order and without gaps.

Stored messages are read by direct reads. In a cluster, a server that lags behind may reply. It returns fewer events,
but never others. Only the leader's reply shows that there are no more events.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nats.js.errors import NotFoundError

from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.bus.kv import next_immutable_message
from sandherd.bus.stream_bounds import read_bounds
from sandherd.client.events import decoder
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import PREFIX

STREAM: Final = "EVENTS"
assert STREAM in BY_STREAM  # a declared stream
BATCH_SIZE: Final = 200
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Maximum number and bytes of events that one request reads."""


@dataclass(frozen=True, slots=True)
class EventFrame:
    """An event as clients get it: a document in one line."""

    sequence: int
    entity: str
    type: str
    document: str
    stored_at: datetime


@dataclass(frozen=True)
class StreamState:
    """The first and last sequence number of the stream. `epoch` differs from those of earlier streams of this name."""

    epoch: str
    first: int
    last: int


def subject_of(project: str, entity: str | None) -> str:
    """The subject pattern of the events of a project, or of one entity of it."""
    return f"{PREFIX}.event.{project}.{entity or '*'}.>"


def frame_of(stored_message: StoredMessage) -> EventFrame | None:
    """The frame of a stored message; None for an invalid one, which the history refuses, too."""
    event = decoder.from_live(stored_message.subject, stored_message.data)
    if event is None:
        return None
    document = event.model_dump_json(exclude_none=True)
    return EventFrame(stored_message.sequence, event.subject, event.type, document, stored_message.at)


class StreamReader:
    """Reads the stream. Every method raises one of `READ_ERRORS` while the broker is unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._request_lock = asyncio.Lock()
        self._next_reply: asyncio.Task[StreamState] | None = None

    async def state(self) -> StreamState:
        """The present state of the stream.

        Concurrent callers share one request, which is sent after all of their calls.
        """
        if self._next_reply is None:
            self._next_reply = asyncio.create_task(self._state_in_turn())
            self._next_reply.add_done_callback(_retrieve_error)
        return await asyncio.shield(self._next_reply)

    async def _state_in_turn(self) -> StreamState:
        async with self._request_lock:
            self._next_reply = None  # later callers get a later reply
            return await self._read_state()

    async def _read_state(self) -> StreamState:
        bounds = await read_bounds(self._bus, STREAM)
        return StreamState(epoch_of(bounds.created), bounds.first, bounds.last)

    async def batch(self, subject: str, first: int, max_bytes: int = BATCH_BYTES) -> list[StoredMessage]:
        """The next events from the sequence `first` on, of about `max_bytes`; empty only if there are none."""
        size = min(max_bytes, BATCH_BYTES)
        while True:
            messages = await read_batch(self._bus, STREAM, subject, first=first, limit=BATCH_SIZE, max_bytes=size)
            if messages or not self._bus.clustered:
                return messages
            try:
                await next_immutable_message(self._bus, STREAM, subject, first)
            except NotFoundError:
                return []


def _retrieve_error(task: asyncio.Task[StreamState]) -> None:
    """Retrieve the error of a request for which no caller waits any more, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def epoch_of(created: str) -> str:
    """The digits of the time at which a stream was created, in nanoseconds: different for every stream."""
    return "".join(character for character in created.partition("+")[0] if character.isdigit())
