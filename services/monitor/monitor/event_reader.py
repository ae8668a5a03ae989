"""Reads EVENTS from a sequence on, in order and without a gap, and knows up to when all events have been read.

New events come from the subject to which the stream republishes what it has stored; each has its sequence, which shows
gaps. Missing and older events are read from the stream directly. There is no consumer: the monitor's credential may
not create one.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.bus.consumers.pull import ConsumerUnresponsiveError
from sandherd.bus.direct_get import StoredMessage, read_batch, read_stored
from sandherd.contracts.headers import SEQUENCE_HEADER
from sandherd.contracts.streams import BY_STREAM, live_subject
from sandherd.telemetry import logs

STREAM: Final = "EVENTS"
_ALL: Final = BY_STREAM[STREAM].subjects[0]
_WINDOW: Final = 8000
_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Maximum new events that wait in memory; on overflow they are dropped, and read from the stream later."""
_BATCH: Final = 1000
_BATCH_BYTES: Final = 16 * 1024 * 1024
_POLL: Final = 1.0
"""Seconds without a new message after which the stream itself is read, to check that it responds."""
_SILENCE: Final = 6.0
_NO_REPLY: Final = (TimeoutError, nats.errors.Error, OSError, KeyError, ValueError)
_log: Final = logs.get("event_reader")


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """How far the stream was read at a request: the broker's time then, and the number of events still to be read."""

    requested_at: datetime
    left: int


class EventReader:
    """Returns every event after a position, in order."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._subscription: Subscription | None = None
        self._new: deque[StoredMessage] = deque()
        self._new_bytes = 0
        self._arrived = asyncio.Event()
        self._next = 0
        self._replied_at = 0.0

    async def start(self, position: int) -> None:
        """Read from behind `position`. Raises `ConsumerUnresponsiveError` if the stream can't be read."""
        await self.stop()
        try:
            self._subscription = await self._bus.client.subscribe(
                live_subject(_ALL), cb=self._on_new, pending_bytes_limit=512 * 1024 * 1024
            )
            first = int((await self._info())["state"]["first_seq"])
        except _NO_REPLY as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be subscribed to: {error!r}") from error
        if first > position + 1 and position:
            _log.warning("events after the snapshot are no longer in the stream", position=position, first=first)
        self._next = max(position + 1, first)

    async def stop(self) -> None:
        """Stop reading, and unsubscribe."""
        subscription, self._subscription = self._subscription, None
        self._drop_new()
        if subscription is not None and not self._bus.closed:
            with suppress(nats.errors.Error):  # not connected: the broker has already removed it
                await subscription.unsubscribe()

    async def next_batch(self) -> Sequence[Delivery]:
        """At least one event. Raises `ConsumerUnresponsiveError` when the stream does not respond."""
        if self._subscription is None:
            raise ConsumerUnresponsiveError("not subscribed")
        while True:
            self._arrived.clear()
            if batch := self._pop_consecutive() or await self._read():
                return [_delivery(stored) for stored in batch]
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL):
                    await self._arrived.wait()

    async def _on_new(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if SEQUENCE_HEADER not in headers:
            return  # not from the stream
        if len(self._new) >= _WINDOW or self._new_bytes + len(msg.data) > _WINDOW_BYTES:
            self._drop_new()
        self._new.append(read_stored(headers, msg.data))
        self._new_bytes += len(msg.data)
        self._arrived.set()

    def _drop_new(self) -> None:
        self._new.clear()
        self._new_bytes = 0

    def _pop_consecutive(self) -> list[StoredMessage]:
        """The new events that directly follow what was read."""
        found: list[StoredMessage] = []
        while self._new and self._new[0].sequence <= self._next and len(found) < _BATCH:
            stored = self._new.popleft()
            self._new_bytes -= len(stored.data)
            if stored.sequence == self._next:
                found.append(stored)
                self._next += 1
        return found

    async def _read(self) -> list[StoredMessage]:
        """The stream's events from the next sequence on. Deleted ones are skipped."""
        try:
            batch = await read_batch(self._bus, STREAM, _ALL, first=self._next, limit=_BATCH, max_bytes=_BATCH_BYTES)
        except _NO_REPLY as error:
            raise ConsumerUnresponsiveError(f"{STREAM} can't be read: {error!r}") from error
        self._replied_at = time.monotonic()
        if batch:
            self._next = batch[-1].sequence + 1
        return batch

    async def reached(self, position: int) -> ReadPosition:
        """How far `position` is behind. Raises `ConsumerUnresponsiveError` if the stream does not respond."""
        try:
            info = await self._info()
            last, at = int(info["state"]["last_seq"]), datetime.fromisoformat(info["ts"]).astimezone(UTC)
        except _NO_REPLY as error:
            raise ConsumerUnresponsiveError(f"{STREAM} does not respond: {error!r}") from error
        return ReadPosition(at, max(0, last - position))

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
