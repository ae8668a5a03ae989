"""Receives the events of a durable subscription.

event-ingest creates the consumers, because clients have no permission to do so. Receiving continues after failures of
the broker and restarts of this program.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.api_subjects import API_FROM_OUTSIDE
from sandherd.bus.consumers.pull import REBIND_DELAY_SECONDS, ConsumerUnresponsiveError, Puller
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, NotReachedError, ServiceUnavailableError
from sandherd.client.events import decoder
from sandherd.client.events.sequencer import Event
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    ListSubscriptions,
    Subscription,
)

WINDOW: Final = 32
"""Maximum number of events that are in flight or not read yet. Each must be acknowledged in `ack_wait_seconds`."""


@dataclass(frozen=True)
class ReceivedEvent:
    """An event of a durable subscription. It is redelivered until acknowledged, so it may be received twice."""

    event: Event
    """The event."""
    stream_sequence: int
    """The sequence of the event in the stream."""
    deliveries: int
    """How often it was delivered: 1 unless it was redelivered."""
    _message: Msg = field(repr=False)

    async def ack(self) -> None:
        """Acknowledge the event. If the acknowledgement is lost, the event is redelivered."""
        with suppress(nats.errors.Error):  # the broker is unavailable, or the event was acknowledged: nothing is lost
            await self._message.ack()

    async def give_back(self) -> None:
        """Request that the event is redelivered at once, to this program or another one."""
        with suppress(nats.errors.Error):  # as above; the event is redelivered later
            await self._message.nak()

    async def continue_work(self) -> None:
        """Report that the event is still being handled: it is not redelivered for another `ack_wait_seconds`."""
        with suppress(nats.errors.Error):  # as above; the event may be received twice
            await self._message.in_progress()


class EventStream:
    """The events of one subscription, oldest first. Iterate over it, and `ack()` each event after handling it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._consumer: str | None = None
        self._puller: Puller | None = None
        self._unread: deque[Msg] = deque()
        self._subscribed = False

    async def __aenter__(self) -> Self:
        await self._bind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        """The next event. Raises `HerdError`: `not_found` for an unknown subscription, `refused` without permission."""
        while True:
            while not self._unread:
                self._unread.extend(await self._next_messages())
            message = self._unread.popleft()
            received = _read_event(message)
            if received is not None:
                return received
            await message.ack()  # not a valid event: the history refuses it, too

    async def close(self) -> None:
        """Stop receiving, and return unread events to the broker, so that the next reader gets them at once."""
        self._subscribed = False
        if self._puller is None:
            return
        with suppress(nats.errors.Error):  # the broker is unavailable; it redelivers the events later
            for message in [*self._unread, *await self._puller.unsubscribe()]:
                await message.nak()
        self._unread.clear()

    async def _next_messages(self) -> list[Msg]:
        """The next messages. Once it has bound, it binds again after each failure while the subscription exists."""
        first = self._puller is None
        while True:
            try:
                if not self._subscribed:
                    await self._bind()
                assert self._puller is not None
                return await self._puller.next_batch(WINDOW)
            except (ConsumerUnresponsiveError, ServiceUnavailableError, nats.errors.Error) as error:
                if first and isinstance(error, ServiceUnavailableError):
                    raise
            self._subscribed = False
            if self._connection.bus.closed:
                raise _closed_error()
            await asyncio.sleep(REBIND_DELAY_SECONDS)

    async def _bind(self) -> None:
        """Look up the subscription by name, and bind to its consumer, which may have been replaced."""
        subscription = await self._find()
        if self._puller is None or subscription.consumer != self._consumer:
            await self.close()
            self._consumer = subscription.consumer
            bus = self._connection.bus
            self._puller = Puller(bus, subscription.stream, subscription.consumer, WINDOW, api=API_FROM_OUTSIDE)
        violations = self._connection.bus.violations
        try:
            await self._puller.bind()
        except ConsumerUnresponsiveError:
            if self._connection.bus.violations > violations:
                raise _refused_error() from None
            raise
        self._subscribed = True

    async def _find(self) -> Subscription:
        reply = await self._connection.request(ListSubscriptions())
        subscription = next((each for each in reply.subscriptions if each.name == self._name), None)
        if subscription is None:
            raise HerdError.of(
                Code.NOT_FOUND,
                f"{self._connection.project} has no subscription {self._name}",
                field="name",
                remedy=f"create it with `sandherd subscriptions create {self._name}`",
            )
        return subscription


def _read_event(message: Msg) -> ReceivedEvent | None:
    event = decoder.from_live(message.subject, message.data)
    if event is None:
        return None
    metadata = message.metadata
    return ReceivedEvent(event, metadata.sequence.stream, metadata.num_delivered or 1, message)


def _closed_error() -> HerdError:
    return NotReachedError.of(
        Code.UNAVAILABLE,
        "the broker closed the connection permanently: the credential expired, or was revoked",
        remedy="check with `sandherd doctor`",
    )


def _refused_error() -> HerdError:
    return HerdError.of(
        Code.REFUSED,
        "this credential has no permission to receive from a subscription",
        field="credentials",
        remedy="use a subscriber's credential, from `sandherd credentials create --role subscriber`",
    )
