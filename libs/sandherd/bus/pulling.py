"""Pulling messages of a durable consumer, continuously and with a pulse.

`nats-py`'s own `fetch` was measured to lose what it had collected when its deadline fell between its two requests,
and a consumer that was deleted, or a stream that was made anew, left it waiting for ever with green health checks.
Here the requests overlap, so that no message waits for one, and the server sends a heartbeat while there is nothing:
silence for three of them means that we are deaf, and is said.
"""

import asyncio
import json
import time
from collections import deque
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sandherd.bus.connection import Bus
from sandherd.telemetry import logs

HEARTBEAT: Final = 1.0
EXPIRES: Final = 20.0
SILENCE: Final = 3 * HEARTBEAT
REBIND: Final = 0.5
_NANO: Final = 1_000_000_000
_log: Final = logs.get("pulling")


class DeafError(Exception):
    """The consumer does not answer: it or its stream is gone, or we may not read it."""


class Puller:
    """The messages of one durable consumer, up to `window` on their way at once.

    `api` is what the JetStream API's subjects begin with, if it is not the connection's.
    """

    def __init__(self, bus: Bus, stream: str, consumer: str, window: int, *, api: str | None = None) -> None:
        self._bus = bus
        self._stream = stream
        self._consumer = consumer
        self._window = window
        self._api = api or bus.api
        self._waiting: deque[Msg] = deque()
        self._arrived = asyncio.Event()
        self._outstanding = 0
        self._heard = time.monotonic()
        self._reconnects = bus.reconnects
        self._subscription: Subscription | None = None
        self._lost: str | None = "not bound yet"

    def problem(self) -> str | None:
        """None while the consumer answers; else why not."""
        if not self._bus.connected:
            return "no connection to the broker"
        if self._lost:
            return self._lost
        silence = time.monotonic() - self._heard
        return f"nothing heard for {silence:.0f} s" if silence > SILENCE * 2 else None

    async def bind(self) -> None:
        """Make sure the consumer is there, and listen. Raises `DeafError` naming it if it is not."""
        try:
            jetstream = self._bus.client.jetstream(prefix=self._api)
            await jetstream.consumer_info(self._stream, self._consumer, timeout=2)
        except (TimeoutError, nats.js.errors.Error, nats.errors.Error, OSError) as error:
            self._lost = f"consumer {self._consumer} of {self._stream} does not answer ({type(error).__name__})"
            raise DeafError(f"{self._lost}; the spawner creates it when it starts") from error
        await self.unbind()
        self._inbox = self._bus.client.new_inbox()
        self._subscription = await self._bus.client.subscribe(
            self._inbox, cb=self._on_message, pending_bytes_limit=512 * 1024 * 1024
        )
        self._reset()
        self._lost = None

    async def unbind(self) -> None:
        """Listen no more."""
        if self._subscription is not None and not self._bus.closed:
            await self._subscription.unsubscribe()
        self._subscription = None

    async def leave(self) -> list[Msg]:
        """Listen no more. Returns what was sent here and nobody asked for, which others get when it is given back.

        Raises `nats.errors.Error` if the broker is away; what it sent then comes again by itself.
        """
        if self._subscription is not None and self._bus.connected:
            # Not just ended: what the broker sends until it hears of that is to be given back as well.
            await self._subscription.drain()  # type: ignore[no-untyped-call]  # nats-py gives it no type
            self._subscription = None
        await self.unbind()
        found = [*self._waiting]
        self._waiting.clear()
        return found

    async def next_batch(self, most: int) -> list[Msg]:
        """At least one message, and no more than `most`. Raises `DeafError` when the consumer is gone."""
        while not self._waiting:
            self._arrived.clear()
            await self._ask_for_more()
            try:
                # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with a message.
                async with asyncio.timeout(HEARTBEAT):
                    await self._arrived.wait()
            except TimeoutError:
                self._notice_silence()
            if self._lost:
                raise DeafError(self._lost)
        batch = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        await self._ask_for_more()
        return batch

    async def _ask_for_more(self) -> None:
        if self._reconnects != self._bus.reconnects:
            self._reset()
        free = self._window - self._outstanding - len(self._waiting)
        if free * 2 < self._window or not self._bus.connected:
            return
        request = {"batch": free, "expires": int(EXPIRES * _NANO), "idle_heartbeat": int(HEARTBEAT * _NANO)}
        self._outstanding += free
        await self._bus.client.publish(
            f"{self._api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}", json.dumps(request).encode(), self._inbox
        )

    async def _on_message(self, msg: Msg) -> None:
        self._heard = time.monotonic()
        # Only a message of the stream has a subject for its acknowledgement. Headers prove nothing: a publisher can
        # set `Status`, too, and the broker stores and delivers it.
        if msg.reply:
            self._outstanding -= 1
            self._waiting.append(msg)
            self._arrived.set()
        elif (status := (msg.headers or {}).get("Status", "")) != "100":
            self._on_status(status, msg.headers or {})

    def _on_status(self, status: str, headers: dict[str, str]) -> None:
        """A pull request has ended: by time (408), or because something happened to the consumer (409, 503)."""
        text = headers.get("Description", "")
        if status == "503" or "Deleted" in text or "Invalid" in text:
            self._lost = f"consumer {self._consumer} of {self._stream}: {text or 'no responders'}"
        self._outstanding = max(0, self._outstanding - int(headers.get("Nats-Pending-Messages", self._outstanding)))
        self._arrived.set()

    def _notice_silence(self) -> None:
        if time.monotonic() - self._heard > SILENCE and self._bus.connected:
            self._lost = f"consumer {self._consumer} of {self._stream} has no pulse"
        elif self._bus.closed:
            self._lost = "the connection is closed for good"

    def _reset(self) -> None:
        """Forget what was asked for: the broker has, too."""
        self._outstanding = 0
        self._heard = time.monotonic()
        self._reconnects = self._bus.reconnects


async def bound(puller: Puller) -> None:
    """Bind, however long it takes, saying so."""
    attempt = 0
    while True:
        try:
            return await puller.bind()
        except DeafError as error:
            if attempt % 20 == 0:
                _log.error("deaf", error=str(error))
        attempt += 1
        await asyncio.sleep(REBIND)
