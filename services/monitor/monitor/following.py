"""Reading EVENTS from a sequence on, in order and without a gap, and knowing until when all has been read.

New events come from where the stream publishes them again once they are stored; each carries its sequence, so that a
gap shows. What is missing, and what was stored before, is read directly. There is no consumer: the monitor's credential
may not create one.
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
from sandherd.bus.consuming import Delivery
from sandherd.bus.direct_get import Kept, read_batch, read_kept
from sandherd.bus.pulling import DeafError
from sandherd.contracts.streams import BY_STREAM, live_subject
from sandherd.telemetry import logs

STREAM: Final = "EVENTS"
_ALL: Final = BY_STREAM[STREAM].subjects[0]
_WINDOW: Final = 8000
"""Maximum new events that wait in memory; further ones are read from the stream when their turn comes."""
_BATCH: Final = 1000
_BATCH_BYTES: Final = 16 * 1024 * 1024
_POLL: Final = 1.0
"""Seconds without a new message after which the stream itself is asked, to check that it answers."""
_SILENCE: Final = 6.0
_UNANSWERED: Final = (TimeoutError, nats.errors.Error, OSError, KeyError, ValueError)
_log: Final = logs.get("following")


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the stream was read when the broker was asked: its time then, and how many events were still to come."""

    asked_at: datetime
    left: int


class Follower:
    """Gives every event after a position, in order."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._subscription: Subscription | None = None
        self._new: deque[Kept] = deque()
        self._arrived = asyncio.Event()
        self._next = 0
        self._answered = 0.0

    async def start(self, position: int) -> None:
        """Read what stands behind `position`. Raises `DeafError` if the stream can't be read."""
        await self.stop()
        try:
            self._subscription = await self._bus.client.subscribe(
                live_subject(_ALL), cb=self._on_new, pending_bytes_limit=512 * 1024 * 1024
            )
            first = int((await self._info())["state"]["first_seq"])
        except _UNANSWERED as error:
            raise DeafError(f"{STREAM} can't be followed: {error!r}") from error
        if first > position + 1 and position:
            _log.warning("the stream no longer has what follows the snapshot", position=position, first=first)
        self._next = max(position + 1, first)

    async def stop(self) -> None:
        """Read no more, and leave nothing behind in the broker."""
        subscription, self._subscription = self._subscription, None
        self._new.clear()
        if subscription is not None and not self._bus.closed:
            with suppress(nats.errors.Error):  # the connection is away: the broker has forgotten it already
                await subscription.unsubscribe()

    async def next_batch(self) -> Sequence[Delivery]:
        """At least one event. Raises `DeafError` when the stream does not answer."""
        if self._subscription is None:
            raise DeafError("not following")
        while True:
            self._arrived.clear()
            if batch := self._take_new() or await self._read():
                return [_delivery(kept) for kept in batch]
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL):
                    await self._arrived.wait()

    async def _on_new(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if "Nats-Sequence" not in headers:
            return  # not from the stream
        if len(self._new) >= _WINDOW:
            self._new.clear()
        self._new.append(read_kept(headers, msg.data))
        self._arrived.set()

    def _take_new(self) -> list[Kept]:
        """The new events that follow directly on what was read."""
        found: list[Kept] = []
        while self._new and self._new[0].sequence <= self._next and len(found) < _BATCH:
            kept = self._new.popleft()
            if kept.sequence == self._next:
                found.append(kept)
                self._next += 1
        return found

    async def _read(self) -> list[Kept]:
        """What the stream has from the next sequence on. What it no longer has is passed over."""
        try:
            batch = await read_batch(self._bus, STREAM, _ALL, first=self._next, most=_BATCH, most_bytes=_BATCH_BYTES)
        except _UNANSWERED as error:
            raise DeafError(f"{STREAM} can't be read: {error!r}") from error
        self._answered = time.monotonic()
        if batch:
            self._next = batch[-1].sequence + 1
        return batch

    async def reached(self, position: int) -> Reached:
        """How far `position` is. Raises `DeafError` if it does not answer."""
        try:
            info = await self._info()
            last, at = int(info["state"]["last_seq"]), datetime.fromisoformat(info["ts"]).astimezone(UTC)
        except _UNANSWERED as error:
            raise DeafError(f"{STREAM} does not answer: {error!r}") from error
        return Reached(at, max(0, last - position))

    async def _info(self) -> dict[str, Any]:
        reply = await self._bus.client.request(f"{self._bus.api}.STREAM.INFO.{STREAM}", timeout=2)
        info: dict[str, Any] = json.loads(reply.data)
        if "error" in info:
            raise nats.errors.Error(str(info["error"].get("description")))
        self._answered = time.monotonic()
        return info

    def problem(self) -> str | None:
        """None while events can be read; else why not."""
        if not self._bus.connected:
            return "no connection to the broker"
        if self._subscription is None:
            return "not following yet"
        silence = time.monotonic() - self._answered
        return f"nothing received for {silence:.0f} s" if silence > _SILENCE else None


def _delivery(kept: Kept) -> Delivery:
    return Delivery(kept.subject, kept.data, STREAM, kept.sequence, 1, kept.at, kept.headers)
