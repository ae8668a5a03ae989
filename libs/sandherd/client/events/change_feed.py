"""One subscription to events of many tasks or sandboxes of a project, to react to changes without polling."""

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from sandherd.client.errors import NotReachedError
from sandherd.client.events import decoder
from sandherd.client.events.protocols import HerdConnection, LiveSubscription
from sandherd.client.events.sequencer import Event
from sandherd.contracts.errors import Code
from sandherd.contracts.names import FLEET
from sandherd.contracts.subjects import BY_NAME


class ChangeFeed:
    """The live events of a project in some domains, such as `task`, from the time when the context is entered.

    After a reconnect, events may be missing. Then `is_stale` is true, and the reader must query the state again.
    """

    def __init__(self, connection: HerdConnection, project: str, domains: Iterable[str]) -> None:
        self._connection = connection
        named = {} if project == FLEET else {"project": project}
        self._subjects = [BY_NAME[f"event.{domain}"].pattern(named) for domain in domains]
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._subscriptions: list[LiveSubscription] = []
        self._closed = False
        self.is_stale = False
        """Whether events may be missing since the last call of `clear_stale`."""

    async def __aenter__(self) -> Self:
        self._unsubscribe = self._connection.on_change(self._on_connection)
        for subject in self._subjects:
            self._subscriptions.append(await self._connection.listen(subject, self._receive))
        await self._connection.flush()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()
        while self._subscriptions:
            await self._subscriptions.pop().unsubscribe()

    def clear_stale(self) -> None:
        """Clear `is_stale`. Call it before a query of the state, which replaces all events that were missed before."""
        self.is_stale = False

    def take(self) -> list[Event]:
        """All events received since the last call, in order. Raises `NotReachedError` if the connection was closed."""
        if self._closed:
            raise NotReachedError.of(
                Code.UNAVAILABLE, "the connection to the broker was closed", remedy="see `sandherd status`"
            )
        events = list(self._events)
        self._events.clear()
        self._changed.clear()
        return events

    async def wait(self) -> None:
        """Wait until an event was received or the connection has changed, since the last `take`."""
        await self._changed.wait()

    async def _receive(self, subject: str, document: bytes) -> None:
        event = decoder.from_live(subject, document)
        if event is not None:
            self._events.append(event)
            self._changed.set()

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  # the signature of `on_change`
        self._closed = self._closed or not connected
        self.is_stale = True
        self._changed.set()
