"""Prints events and terminal output in order of time, although they arrive separately."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from sandherd.client.events.sequencer import Event
from sandherd.client.events.time_order import TimeOrder
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.events.agent import AgentStarted

Show = Callable[[], None]
"""Prints one item."""


class FollowedEvents(Protocol):
    """The source of events; `EventFollower` implements it."""

    @property
    def is_catching_up(self) -> bool:
        """Whether events are known to be missing."""

    async def __anext__(self) -> Event:
        """The next event."""


class TimedDisplay:
    """Prints the added items in order of time: due items in `follow`, the others on exit. Both raise their errors."""

    def __init__(self) -> None:
        self._order: TimeOrder[Show] = TimeOrder()
        self._starting: set[str] = set()
        """Sources of which only the first event has arrived, the agent's start.

        A worker publishes this event alone, so its next events may arrive late.
        """
        self._added = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    def add(self, show: Show, *, source: str, time: datetime) -> None:
        """Add an item. `show` prints it when it is due."""
        self._order.add(show, source=source, time=time, now=self._now())
        self._added.set()

    async def follow(self, events: FollowedEvents, receive: Callable[[Event], None]) -> None:
        """Pass each event to `receive`, and print items when they are due, until the last event was received."""
        reading: asyncio.Future[Any] | None = None
        try:
            while True:
                reading = reading or asyncio.ensure_future(_next(events))
                await self._wait(reading)
                self._order.incomplete = bool(self._starting) or events.is_catching_up
                self._print(self._order.due(self._now()))
                if reading.done():
                    event, reading = reading.result(), None
                    if event is None:
                        return
                    self._note_start(event)
                    receive(event)
        finally:
            await cancel_and_wait([reading] if reading is not None else [])

    def _note_start(self, event: Event) -> None:
        if event.type == AgentStarted.type:
            self._starting.add(event.source)
        else:
            self._starting.discard(event.source)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Print the other items, unless printing has failed, for example by a closed pipe."""
        if not isinstance(error, OSError):
            self._print(self._order.rest())

    async def _wait(self, reading: "asyncio.Future[Any]") -> None:
        """Wait for an event, for an item that was added, or until an item is due."""
        self._added.clear()
        adding = asyncio.ensure_future(self._added.wait())
        try:
            await asyncio.wait(
                {reading, adding}, timeout=self._order.due_in(self._now()), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            adding.cancel()

    @staticmethod
    def _print(shows: list[Show]) -> None:
        for show in shows:
            show()


async def _next(events: FollowedEvents) -> Event | None:
    return await anext(events, None)
