"""What event-ingest keeps, as following asks for it: page by page, and with a note of whether it answers at all."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from sandherd.client import heard
from sandherd.client.errors import HerdError
from sandherd.client.sequencing import Event, Missing
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import AskEvents, EventList

PAGE: Final = 500
_SILENT: Final = frozenset({Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL})

Ask = Callable[[Any], Awaitable[Any]]


class SilentHistoryError(Exception):
    """The history did not answer, or could not."""


class History:
    """Events of the past. `silent_since` is when it last began not to answer (`now`'s clock), None while it does."""

    def __init__(self, ask: Ask, now: Callable[[], float]) -> None:
        self.silent_since: float | None = None
        self._ask = ask
        self._now = now

    async def events(self, request: AskEvents) -> AsyncIterator[Event]:
        """Every event that answers a question, page after page.

        Raises `SilentHistoryError`, or `HerdError` for a question that is refused.
        """
        following: AskEvents | None = request
        while following is not None:
            events, following = await self.page(following)
            for event in events:
                yield event

    async def page(self, request: AskEvents) -> tuple[list[Event], AskEvents | None]:
        """One page of events, and the request for the next page if there is one. Raises as `events`."""
        page = await self._page(request)
        events = [heard.kept(stored) for stored in page.events]
        if page.next_cursor is None or not events:
            return events, None
        return events, request.model_copy(update={"cursor": page.next_cursor})

    async def within(self, gap: Missing) -> list[Event]:
        """What is kept of a gap."""
        wanted = 1000 if gap.last is None else min(1000, gap.last - gap.first + 1)
        found = await self._page(AskEvents(source=gap.source, after_sequence=gap.first - 1, limit=wanted))
        return [heard.kept(stored) for stored in found.events]

    async def has(self, event: Event) -> bool:
        """Whether an event is kept already, and with it what was said before it."""
        request = AskEvents(source=event.source, after_sequence=event.sequence - 1, limit=1)
        return bool((await self._page(request)).events)

    async def _page(self, request: AskEvents) -> EventList:
        try:
            answer: EventList = await self._ask(request)
        except HerdError as error:
            if error.problem.code not in _SILENT:
                raise
            self.silent_since = self._now() if self.silent_since is None else self.silent_since
            raise SilentHistoryError(error.line) from error
        self.silent_since = None
        return answer
