"""Reads stored events from event-ingest for followers, page by page; tracks whether it replies."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.client.events import decoder
from sandherd.client.events.sequencer import Event, MissingRange
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import EventList, ListEvents

_NO_REPLY_CODES: Final = frozenset({Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL})

SendRequest = Callable[[Any], Awaitable[Any]]


class SilentHistoryError(Exception):
    """The history did not reply, or replied with an internal error."""


class History:
    """Stored events. `silent_since` is the time (of `now`) since which the history does not reply, or None."""

    def __init__(self, send: SendRequest, now: Callable[[], float]) -> None:
        self.silent_since: float | None = None
        self._send = send
        self._now = now

    async def events(self, request: ListEvents) -> AsyncIterator[Event]:
        """Every event that matches a request, page by page.

        Raises `SilentHistoryError`, or `HerdError` for a refused request.
        """
        following: ListEvents | None = request
        while following is not None:
            events, following = await self.page(following)
            for event in events:
                yield event

    async def page(self, request: ListEvents) -> tuple[list[Event], ListEvents | None]:
        """One page of events, and the request for the next page if there is one. Raises as `events`."""
        page = await self._page(request)
        events = [decoder.from_history(stored) for stored in page.events]
        if page.next_cursor is None or not events:
            return events, None
        return events, request.model_copy(update={"cursor": page.next_cursor})

    async def within(self, gap: MissingRange) -> list[Event]:
        """The first stored events of a gap, at most 1,000. Raises as `events`."""
        limit = 1000 if gap.last is None else min(1000, gap.last - gap.first + 1)
        page = await self._page(ListEvents(source=gap.source, after_sequence=gap.first - 1, limit=limit))
        return [decoder.from_history(stored) for stored in page.events]

    async def has(self, event: Event) -> bool:
        """Whether an event and all events before it are stored."""
        page = await self._page(ListEvents(source=event.source, after_sequence=event.sequence - 1, limit=1))
        if page.stored_through is None:
            return bool(page.events)
        return any(stored.stream_sequence <= page.stored_through for stored in page.events)

    async def _page(self, request: ListEvents) -> EventList:
        try:
            reply: EventList = await self._send(request)
        except HerdError as error:
            if error.problem.code not in _NO_REPLY_CODES:
                raise
            self.silent_since = self._now() if self.silent_since is None else self.silent_since
            raise SilentHistoryError(error.line) from error
        self.silent_since = None
        return reply
