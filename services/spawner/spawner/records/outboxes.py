"""The events in outboxes that this process has published, until a write removes them from their records.

A published event is removed with the next write of its record, which saves a write for each transition. If there is no
next write, it is removed after `CLEAR_AFTER`, or when the spawner stops. If the spawner is killed before that, the next
spawner publishes the event again with the same id. The broker ignores the repetition only within its duplicate window.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

from spawner.records.base_record import Record

CLEAR_AFTER: Final = 10.0
"""Seconds after which a published event is removed from its record, if no other write has removed it.

A task that begins within this time needs no additional write. The value is far below the duplicate window of events:
if the spawner is restarted soon, the broker ignores the events that it publishes again.
"""

RecordT = TypeVar("RecordT", bound=Record)


class Outboxes:
    """The published events of the records of one bucket, by key."""

    def __init__(self) -> None:
        self._published: dict[str, frozenset[str]] = {}
        self._due: deque[tuple[float, str]] = deque()
        self._added = asyncio.Event()

    def pending(self, record: Record) -> list[str]:
        """The events of a record that are not published yet, in order."""
        published = self._published.get(record.key, frozenset())
        return [document for document in record.outbox if document not in published]

    def add(self, key: str, published: Iterable[str]) -> None:
        """Add published events that are still in the stored record."""
        self._published[key] = self._published.get(key, frozenset()).union(published)
        self.postpone(key)

    def postpone(self, key: str) -> None:
        """Try to clear this record `CLEAR_AFTER` from now."""
        self._due.append((asyncio.get_running_loop().time() + CLEAR_AFTER, key))
        self._added.set()

    def cleared(self, record: RecordT) -> RecordT:
        """The record without its published events; the same object if it has none."""
        published = self._published.get(record.key)
        return record.without(published) if published and published.intersection(record.outbox) else record

    def written(self, record: Record) -> None:
        """Drop published events that are no longer in the record. Called with each record as it was stored."""
        published = self._published.get(record.key)
        if published is None:
            return
        remaining = published.intersection(record.outbox)
        if remaining:
            self._published[record.key] = remaining
        else:
            del self._published[record.key]

    def keys(self) -> list[str]:
        """The keys of records with published events."""
        return list(self._published)

    def drop(self, key: str) -> None:
        """Drop the published events of a record that was removed."""
        self._published.pop(key, None)

    async def next_due(self) -> str:
        """Wait until a record has had published events for `CLEAR_AFTER`, and return its key."""
        while True:
            while not self._due:
                self._added.clear()
                await self._added.wait()
            at, key = self._due.popleft()
            await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
            if key in self._published:
                return key
