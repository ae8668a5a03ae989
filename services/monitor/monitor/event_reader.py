"""Reads the stream EVENTS from a sequence number on, in order and without gaps.

New events are received from the subjects to which the stream republishes each event that it has stored. Their sequence
numbers show gaps. Missing and older events are read from the stream. The monitor uses no consumer, because its
credential may not create one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.bus.consumers.pull import ConsumerUnresponsiveError
from sandherd.bus.direct_get import StoredMessage, read_batch, read_stored
from sandherd.bus.kv import next_message
from sandherd.bus.stream_bounds import StreamBounds, read_bounds
from sandherd.contracts.headers import SEQUENCE_HEADER, STORED_SUBJECT
from sandherd.contracts.streams import BY_STREAM, live_subject

STREAM: Final = "EVENTS"
_ALL_SUBJECTS: Final = BY_STREAM[STREAM].subjects[0]
_MAX_WAITING_EVENTS: Final = 8000
_MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Maximum number, and maximum size in bytes, of the new events that wait in memory. If there are more, all of them are
dropped, and read from the stream later."""
_BATCH_EVENTS: Final = 1000
_BATCH_BYTES: Final = 16 * 1024 * 1024
_CHECK_SECONDS: Final = 1.0
"""Seconds without a new event after which the stream is read, to check that it responds."""
_MAX_SILENCE_SECONDS: Final = 6.0
"""Seconds without a reply of the stream after which readiness reports a problem."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The wanted events up to a position, in order, and the time when the event at that position was stored.

    The position is the sequence number of the last event that was read, wanted or not.
    """

    events: Sequence[Delivery]
    position: int
    at: datetime


class EventReader:
    """Reads the events whose subject `wanted` accepts, in order.

    An event that is not wanted is skipped by its headers. This takes a fifth of the CPU time of folding an event.
    """

    def __init__(self, bus: Bus, wanted: Callable[[str], bool] = lambda _subject: True) -> None:
        self._bus = bus
        self._wanted = wanted
        self._subscription: Subscription | None = None
        self._waiting: deque[tuple[int, Msg]] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._next_sequence = 0
        self._last_reply_at = 0.0

    async def start(self, position: int | None = None) -> int:
        """Start reading after `position`; None means after the last event in the stream. Returns the actual position.

        The actual position is later than `position` if the stream has deleted the events after `position`. Raises
        `ConsumerUnresponsiveError` if the stream can't be read.
        """
        await self.stop()
        try:
            self._subscription = await self._bus.client.subscribe(
                live_subject(_ALL_SUBJECTS), cb=self._on_event, pending_bytes_limit=512 * 1024 * 1024
            )
        except READ_ERRORS as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be subscribed to: {error!r}") from error
        bounds = await self.bounds()
        self._next_sequence = max(bounds.last if position is None else position, bounds.first - 1) + 1
        return self._next_sequence - 1

    async def stop(self) -> None:
        """Stop reading, and unsubscribe."""
        subscription, self._subscription = self._subscription, None
        self._drop_waiting()
        if subscription is not None and not self._bus.closed:
            with suppress(nats.errors.Error):  # not connected: the broker has already removed it
                await subscription.unsubscribe()

    async def next_batch(self) -> EventBatch:
        """The next batch. It is empty if none of the events that were read is wanted. Waits until there are events.

        Raises `ConsumerUnresponsiveError` if the stream does not respond.
        """
        if self._subscription is None:
            raise ConsumerUnresponsiveError("not subscribed")
        while True:
            self._arrived.clear()
            if batch := self._pop_consecutive() or await self._read():
                return batch
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._arrived.wait()

    async def _on_event(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if SEQUENCE_HEADER not in headers:
            return  # published to this subject by a client, not republished by the stream
        if len(self._waiting) >= _MAX_WAITING_EVENTS or self._waiting_bytes + len(msg.data) > _MAX_WAITING_BYTES:
            self._drop_waiting()
        self._waiting.append((int(headers[SEQUENCE_HEADER]), msg))
        self._waiting_bytes += len(msg.data)
        self._arrived.set()

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _pop_consecutive(self) -> EventBatch | None:
        """The waiting events that directly follow the last event that was read. None if there are none."""
        events: list[Delivery] = []
        last: Msg | None = None
        count = 0
        while self._waiting and self._waiting[0][0] <= self._next_sequence and count < _BATCH_EVENTS:
            sequence, msg = self._waiting.popleft()
            self._waiting_bytes -= len(msg.data)
            if sequence < self._next_sequence:
                continue
            last, self._next_sequence, count = msg, sequence + 1, count + 1
            if self._wanted((msg.headers or {}).get(STORED_SUBJECT, "")):
                events.append(_delivery(read_stored(msg.headers or {}, msg.data)))
        if last is None:
            return None
        return EventBatch(events, self._next_sequence - 1, read_stored(last.headers or {}, b"").at)

    async def _read(self) -> EventBatch | None:
        batch = await self.read_from(self._next_sequence, self._wanted)
        if batch is not None:
            self._next_sequence = batch.position + 1
        return batch

    async def read_from(self, first: int, wanted: Callable[[str], bool]) -> EventBatch | None:
        """Read the next events of the stream from sequence number `first` on. Returns the wanted ones; None at its end.

        Deleted events are skipped. Raises `ConsumerUnresponsiveError`.
        """
        try:
            batch = await read_batch(
                self._bus, STREAM, _ALL_SUBJECTS, first=first, limit=_BATCH_EVENTS, max_bytes=_BATCH_BYTES
            )
        except READ_ERRORS as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be read: {error!r}") from error
        self._last_reply_at = time.monotonic()
        if not batch:
            return None
        events = [_delivery(stored) for stored in batch if wanted(stored.subject)]
        return EventBatch(events, batch[-1].sequence, batch[-1].at)

    async def has_after(self, first: int) -> bool:
        """Whether the stream's leader has an event from sequence number `first` on.

        Raises `ConsumerUnresponsiveError`.
        """
        try:
            await next_message(self._bus, STREAM, _ALL_SUBJECTS, first)
        except nats.js.errors.NotFoundError:
            return False
        except READ_ERRORS as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be read: {error!r}") from error
        return True

    async def bounds(self) -> StreamBounds:
        """The first and the last sequence number in the stream now.

        Raises `ConsumerUnresponsiveError` if it does not respond.
        """
        try:
            bounds = await read_bounds(self._bus, STREAM)
        except READ_ERRORS as error:
            raise ConsumerUnresponsiveError(f"{STREAM} does not respond: {error!r}") from error
        self._last_reply_at = time.monotonic()
        return bounds

    def problem(self) -> str | None:
        """Why events can't be read. None if they can be read."""
        if not self._bus.connected:
            return "no connection to the broker"
        if self._subscription is None:
            return "not subscribed yet"
        silence = time.monotonic() - self._last_reply_at
        return f"nothing received for {silence:.0f} s" if silence > _MAX_SILENCE_SECONDS else None


def _delivery(stored_message: StoredMessage) -> Delivery:
    return Delivery(
        stored_message.subject,
        stored_message.data,
        STREAM,
        stored_message.sequence,
        1,
        stored_message.at,
        stored_message.headers,
    )
