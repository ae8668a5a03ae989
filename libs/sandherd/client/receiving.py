"""Taking the events of a durable subscription, however often the broker, or this program, is away meanwhile."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.api_subjects import API_FROM_OUTSIDE
from sandherd.bus.pulling import REBIND, DeafError, Puller
from sandherd.client import heard
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, NotReachedError, ServiceAwayError
from sandherd.client.sequencing import Event
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import AskSubscriptions, Subscription

WINDOW: Final = 32
"""How many events are on their way, or wait here, at once. Each has `ack_wait_seconds` to be dealt with."""


@dataclass(frozen=True)
class Received:
    """An event that was kept for us. What is not acknowledged comes again, so the same one may come twice."""

    event: Event
    stream_sequence: int
    deliveries: int
    """How often it was given: 1, unless it comes again."""
    _message: Msg = field(repr=False)

    async def ack(self) -> None:
        """Say that it is dealt with. If that is lost on its way, the event comes once more."""
        with suppress(nats.errors.Error):  # the broker is away, or it was acknowledged before: nothing is lost by it
            await self._message.ack()


class Receiving:
    """The events of one subscription, oldest first. Iterate over it, and `ack()` each when it is dealt with."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._consumer: str | None = None
        self._puller: Puller | None = None
        self._waiting: deque[Msg] = deque()
        self._bound = False

    async def __aenter__(self) -> Self:
        await self._bind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        """The next event. Raises `HerdError`: `not_found` if the subscription is gone, `refused` if we may not."""
        while True:
            while not self._waiting:
                self._waiting.extend(await self._more())
            message = self._waiting.popleft()
            received = _read(message)
            if received is not None:
                return received
            await message.ack()  # no event at all: the history refuses it, too

    async def close(self) -> None:
        """Take no more, and give back what nobody has looked at, so that the next reader need not wait for it."""
        self._bound = False
        if self._puller is None:
            return
        with suppress(nats.errors.Error):  # the broker is away, and gives it again by itself
            for message in [*self._waiting, *await self._puller.leave()]:
                await message.nak()
        self._waiting.clear()

    async def _more(self) -> list[Msg]:
        """What comes next. Being bound once, it is bound again for as long as the subscription is there."""
        first = self._puller is None
        while True:
            try:
                if not self._bound:
                    await self._bind()
                assert self._puller is not None
                return await self._puller.next_batch(WINDOW)
            except (DeafError, ServiceAwayError, nats.errors.Error) as error:
                if first and isinstance(error, ServiceAwayError):
                    raise
            self._bound = False
            if self._connection.bus.closed:
                raise _closed()
            await asyncio.sleep(REBIND)

    async def _bind(self) -> None:
        """Find the subscription by its name, and take from its consumer: another may be in its place by now."""
        found = await self._find()
        if self._puller is None or found.consumer != self._consumer:
            await self.close()
            self._consumer = found.consumer
            bus = self._connection.bus
            self._puller = Puller(bus, found.stream, found.consumer, WINDOW, api=API_FROM_OUTSIDE)
        violations = self._connection.bus.violations
        try:
            await self._puller.bind()
        except DeafError:
            if self._connection.bus.violations > violations:
                raise _refused() from None
            raise
        self._bound = True

    async def _find(self) -> Subscription:
        listed = await self._connection.ask(AskSubscriptions())
        found = next((one for one in listed.subscriptions if one.name == self._name), None)
        if found is None:
            raise HerdError.of(
                Code.NOT_FOUND,
                f"{self._connection.project} has no subscription {self._name}",
                field="name",
                remedy=f"make it with `sandherd subscriptions create {self._name}`",
            )
        return found


def _read(message: Msg) -> Received | None:
    event = heard.live(message.subject, message.data)
    if event is None:
        return None
    place = message.metadata
    return Received(event, place.sequence.stream, place.num_delivered or 1, message)


def _closed() -> HerdError:
    return NotReachedError.of(
        Code.UNAVAILABLE,
        "the broker closed the connection for good: the credential ran out, or was taken back",
        remedy="look with `sandherd doctor`",
    )


def _refused() -> HerdError:
    return HerdError.of(
        Code.REFUSED,
        "this credential may not take events from a subscription",
        field="credentials",
        remedy="use a subscriber's, which `sandherd credentials create --role subscriber` makes",
    )
