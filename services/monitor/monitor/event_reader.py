"""Reads EVENTS from a sequence on, in order and without gaps, and records up to which time all events were read.

New events are received from the subject to which the stream republishes what it has stored; their sequences show gaps.
Missing and older events are read from the stream directly. There is no consumer, because the monitor's credential may
not create one.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.bus.consumers.pull import ConsumerUnresponsiveError
from sandherd.bus.direct_get import StoredMessage, read_batch, read_stored
from sandherd.bus.kv import next_message
from sandherd.contracts.headers import SEQUENCE_HEADER, STORED_SUBJECT
from sandherd.contracts.streams import BY_STREAM, live_subject
from sandherd.telemetry import logs

STREAM: Final = "EVENTS"
_ALL: Final = BY_STREAM[STREAM].subjects[0]
_WINDOW: Final = 8000
_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Maximum size in bytes of the new events that wait in memory. On overflow they are dropped, and read from the stream
later."""
_BATCH: Final = 1000
_BATCH_BYTES: Final = 16 * 1024 * 1024
_POLL: Final = 1.0
"""Seconds without a new message after which the stream itself is read, to check that it responds."""
_SILENCE: Final = 6.0
_NO_REPLY: Final = (TimeoutError, nats.errors.Error, OSError, KeyError, ValueError)
_log: Final = logs.get("event_reader")


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """The first and the last sequence in the stream at the time of a request, by the broker's clock."""

    requested_at: datetime
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The wanted events up to a position, in order, and the time when the event at that position was stored."""

    events: Sequence[Delivery]
    position: int
    at: datetime


class EventReader:
    """Returns the events after a position, in order, whose subject `wanted` accepts.

    A new event that is not wanted is recognised by its headers, at a fifth of the cost of folding an event.
    """

    def __init__(self, bus: Bus, wanted: Callable[[str], bool] = lambda _subject: True) -> None:
        self._bus = bus
        self._wanted = wanted
        self._subscription: Subscription | None = None
        self._new: deque[tuple[int, Msg]] = deque()
        self._new_bytes = 0
        self._arrived = asyncio.Event()
        self._next = 0
        self._replied_at = 0.0

    async def start(self, position: int | None = None) -> int:
        """Begin to read the events after `position`, or only new events if it is None. Returns the actual position.

        The actual position is later than `position` if events after that were deleted. Raises
        `ConsumerUnresponsiveError` if the stream can't be read.
        """
        await self.stop()
        try:
            self._subscription = await self._bus.client.subscribe(
                live_subject(_ALL), cb=self._on_new, pending_bytes_limit=512 * 1024 * 1024
            )
        except _NO_REPLY as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be subscribed to: {error!r}") from error
        ends = await self.ends()
        self._next = max(ends.last if position is None else position, ends.first - 1) + 1
        return self._next - 1

    async def stop(self) -> None:
        """Stop reading, and unsubscribe."""
        subscription, self._subscription = self._subscription, None
        self._drop_new()
        if subscription is not None and not self._bus.closed:
            with suppress(nats.errors.Error):  # not connected: the broker has already removed it
                await subscription.unsubscribe()

    async def next_batch(self) -> EventBatch:
        """The next batch, for which at least one event was read. It is empty if none of them is wanted.

        Raises `ConsumerUnresponsiveError` if the stream does not respond.
        """
        if self._subscription is None:
            raise ConsumerUnresponsiveError("not subscribed")
        while True:
            self._arrived.clear()
            if batch := self._pop_consecutive() or await self._read():
                return batch
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL):
                    await self._arrived.wait()

    async def _on_new(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if SEQUENCE_HEADER not in headers:
            return  # the stream has not republished it
        if len(self._new) >= _WINDOW or self._new_bytes + len(msg.data) > _WINDOW_BYTES:
            self._drop_new()
        self._new.append((int(headers[SEQUENCE_HEADER]), msg))
        self._new_bytes += len(msg.data)
        self._arrived.set()

    def _drop_new(self) -> None:
        self._new.clear()
        self._new_bytes = 0

    def _pop_consecutive(self) -> EventBatch | None:
        """The new events that directly follow the last event that was read; None if there are none."""
        found: list[Delivery] = []
        last: Msg | None = None
        count = 0
        while self._new and self._new[0][0] <= self._next and count < _BATCH:
            sequence, msg = self._new.popleft()
            self._new_bytes -= len(msg.data)
            if sequence < self._next:
                continue
            last, self._next, count = msg, sequence + 1, count + 1
            if self._wanted((msg.headers or {}).get(STORED_SUBJECT, "")):
                found.append(_delivery(read_stored(msg.headers or {}, msg.data)))
        if last is None:
            return None
        return EventBatch(found, self._next - 1, read_stored(last.headers or {}, b"").at)

    async def _read(self) -> EventBatch | None:
        batch = await self.stored(self._next, self._wanted)
        if batch is not None:
            self._next = batch.position + 1
        return batch

    async def stored(self, first: int, wanted: Callable[[str], bool]) -> EventBatch | None:
        """The next wanted events that the stream has from this sequence on; None if it has no event there.

        Deleted events are skipped. Raises `ConsumerUnresponsiveError`.
        """
        try:
            batch = await read_batch(self._bus, STREAM, _ALL, first=first, limit=_BATCH, max_bytes=_BATCH_BYTES)
        except _NO_REPLY as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be read: {error!r}") from error
        self._replied_at = time.monotonic()
        if not batch:
            return None
        events = [_delivery(stored) for stored in batch if wanted(stored.subject)]
        return EventBatch(events, batch[-1].sequence, batch[-1].at)

    async def has_after(self, first: int) -> bool:
        """Whether the stream's leader has an event from this sequence on. Raises `ConsumerUnresponsiveError`."""
        try:
            await next_message(self._bus, STREAM, _ALL, first)
        except nats.js.errors.NotFoundError:
            return False
        except _NO_REPLY as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be read: {error!r}") from error
        return True

    async def ends(self) -> StreamEnds:
        """The first and the last sequence in the stream now.

        Raises `ConsumerUnresponsiveError` if it does not respond.
        """
        try:
            info = await self._info()
            at = datetime.fromisoformat(info["ts"]).astimezone(UTC)
            return StreamEnds(at, int(info["state"]["first_seq"]), int(info["state"]["last_seq"]))
        except _NO_REPLY as error:
            raise ConsumerUnresponsiveError(f"{STREAM} does not respond: {error!r}") from error

    async def _info(self) -> dict[str, Any]:
        reply = await self._bus.client.request(f"{self._bus.api}.STREAM.INFO.{STREAM}", timeout=2)
        info: dict[str, Any] = json.loads(reply.data)
        if "error" in info:
            raise nats.errors.Error(str(info["error"].get("description")))
        self._replied_at = time.monotonic()
        return info

    def problem(self) -> str | None:
        """Why events can't be read; None if they can."""
        if not self._bus.connected:
            return "no connection to the broker"
        if self._subscription is None:
            return "not subscribed yet"
        silence = time.monotonic() - self._replied_at
        return f"nothing received for {silence:.0f} s" if silence > _SILENCE else None


def _delivery(stored: StoredMessage) -> Delivery:
    return Delivery(stored.subject, stored.data, STREAM, stored.sequence, 1, stored.at, stored.headers)
