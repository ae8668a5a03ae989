"""Pulls the messages of a durable consumer, continuously and with heartbeats.

nats-py's `fetch` is not used: it lost the messages that it had collected when its deadline fell between its two
requests, and it waited forever, while health checks passed, after its consumer was deleted or its stream recreated.
Here a pull request is sent before the previous one is used up, so that no message waits for a request. While there are
no messages, the server sends heartbeats. If three are missing, the consumer is reported as not responding.
"""

import asyncio
import json
import time
from collections import deque
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.telemetry import logs

HEARTBEAT_SECONDS: Final = 1.0
"""The interval of the broker's heartbeats while a pull request waits for messages."""
PULL_EXPIRY_SECONDS: Final = 20.0
"""The time until a pull request expires."""
MAX_SILENCE_SECONDS: Final = 3 * HEARTBEAT_SECONDS
"""The time without a message or heartbeat after which a consumer counts as unresponsive."""
REBIND_DELAY_SECONDS: Final = 0.5
"""The delay before the next attempt to bind an unresponsive consumer."""
PULL_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes per pull request. nats-server closes a connection for which it holds 64 MiB (`max_pending`), and a
consumer delivers as fast as its stream is read. At most two requests of a puller are open at once."""
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000
_log: Final = logs.get("pull")


class ConsumerUnresponsiveError(Exception):
    """The consumer does not respond: it or its stream was deleted, or this credential may not read it."""


class Puller:
    """Pulls from one durable consumer. `window` is the maximum number of messages that are requested or wait here.

    `api` is the prefix of the JetStream API's subjects, by default the connection's. Without `headers` the messages
    have no headers, and need less CPU time (`TlsClient.take_messages`).
    """

    def __init__(
        self, bus: Bus, stream: str, consumer: str, window: int, *, api: str | None = None, headers: bool = True
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._consumer = consumer
        self._window = window
        self._api = api or bus.api
        self._headers = headers
        self._waiting: deque[Msg] = deque()
        self._arrived = asyncio.Event()
        self._outstanding = 0
        self._received_at = time.monotonic()
        self._reconnects = bus.reconnects
        self._subscription: Subscription | None = None
        self._problem: str | None = "not bound yet"

    def problem(self) -> str | None:
        """The reason why the consumer does not respond; None while it does."""
        if not self._bus.connected:
            return "no connection to the broker"
        if self._problem:
            return self._problem
        silence = time.monotonic() - self._received_at
        return f"no message or heartbeat for {silence:.0f} s" if silence > MAX_SILENCE_SECONDS * 2 else None

    async def bind(self) -> None:
        """Check that the consumer exists, and subscribe. Raises `ConsumerUnresponsiveError` if it does not respond."""
        try:
            jetstream = self._bus.client.jetstream(prefix=self._api)
            await jetstream.consumer_info(self._stream, self._consumer, timeout=2)
        except BROKER_ERRORS as error:
            self._problem = f"consumer {self._consumer} of {self._stream} does not respond ({type(error).__name__})"
            raise ConsumerUnresponsiveError(f"{self._problem}; the spawner creates it when it starts") from error
        await self.unbind()
        self._inbox = self._bus.client.new_inbox()
        self._subscription = await self._bus.client.subscribe(
            self._inbox, cb=self._on_message, pending_bytes_limit=512 * 1024 * 1024
        )
        if not self._headers:
            self._bus.client.take_messages(self._subscription, self._take)
        self._reset()
        self._problem = None

    async def unbind(self) -> None:
        """Unsubscribe."""
        if self._subscription is not None and not self._bus.closed:
            await self._subscription.unsubscribe()
        self._subscription = None

    async def unsubscribe(self) -> list[Msg]:
        """Unsubscribe. Returns the messages that were received but not returned by `next_batch`.

        The caller negatively acknowledges them, so that another replica receives them. Raises `nats.errors.Error` if
        the broker is unavailable, which then redelivers them later.
        """
        if self._subscription is not None and self._bus.connected:
            # The subscription is drained, to receive the messages until the broker has processed the unsubscription.
            await self._subscription.drain()  # type: ignore[no-untyped-call]  # nats-py gives it no type
            self._subscription = None
        await self.unbind()
        messages = [*self._waiting]
        self._waiting.clear()
        return messages

    async def next_batch(self, limit: int) -> list[Msg]:
        """One to `limit` messages. Raises `ConsumerUnresponsiveError` when the consumer does not respond."""
        while not self._waiting:
            self._arrived.clear()
            await self._request_more()
            try:
                # `wait_for` is not used, because in Python 3.11 it swallows a cancellation that arrives with a message.
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                self._check_silence()
            if self._problem:
                raise ConsumerUnresponsiveError(self._problem)
        batch = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        await self._request_more()
        return batch

    async def _request_more(self) -> None:
        if self._reconnects != self._bus.reconnects:
            self._reset()
        free = self._window - self._outstanding - len(self._waiting)
        if free * 2 < self._window or not self._bus.connected:
            return
        request = {
            "batch": free,
            "max_bytes": PULL_BYTES,
            "expires": int(PULL_EXPIRY_SECONDS * _NANOSECONDS_PER_SECOND),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * _NANOSECONDS_PER_SECOND),
        }
        self._outstanding += free
        await self._bus.client.publish(
            f"{self._api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}", json.dumps(request).encode(), self._inbox
        )

    async def _on_message(self, msg: Msg) -> None:
        # Only a message of the stream has a reply subject. Headers prove nothing, because a publisher can also set
        # `Status`, and the broker stores and delivers it.
        if msg.reply:
            self._take(msg)
            return
        self._received_at = time.monotonic()
        if (status := (msg.headers or {}).get("Status", "")) != "100":
            self._on_status(status, msg.headers or {})

    def _take(self, msg: Msg) -> None:
        """Queue a message of the stream."""
        self._received_at = time.monotonic()
        self._outstanding -= 1
        self._waiting.append(msg)
        self._arrived.set()

    def _on_status(self, status: str, headers: dict[str, str]) -> None:
        """Handle the end of a pull request: it has expired (408), has reached its maximum size (409), or failed."""
        text = headers.get("Description", "")
        if status == "503" or "Deleted" in text or "Invalid" in text:
            self._problem = f"consumer {self._consumer} of {self._stream}: {text or 'no responders'}"
        self._outstanding = max(0, self._outstanding - int(headers.get("Nats-Pending-Messages", self._outstanding)))
        self._arrived.set()

    def _check_silence(self) -> None:
        if time.monotonic() - self._received_at > MAX_SILENCE_SECONDS and self._bus.connected:
            self._problem = f"consumer {self._consumer} of {self._stream} sends no heartbeats"
        elif self._bus.closed:
            self._problem = "the connection is closed permanently"

    def _reset(self) -> None:
        """Set the count of requested messages to zero, because the broker has discarded the requests."""
        self._outstanding = 0
        self._received_at = time.monotonic()
        self._reconnects = self._bus.reconnects


async def bind_with_retries(puller: Puller) -> None:
    """Bind, retrying without limit, with a log line for every 20th failure."""
    attempt = 0
    while True:
        try:
            return await puller.bind()
        except ConsumerUnresponsiveError as error:
            if attempt % 20 == 0:
                _log.error("consumer not responding, rebinding", error=str(error))
        attempt += 1
        await asyncio.sleep(REBIND_DELAY_SECONDS)
