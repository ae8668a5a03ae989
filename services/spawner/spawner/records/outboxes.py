"""What this process has published of the outboxes of records, until a write removes it from its record.

A published event is removed with the next write of its record, which saves a write for each transition. Without a next
write it is removed after `CLEAR_AFTER`, and when the spawner stops. If the spawner is killed before, the next one
publishes the event again with the same id: within its duplicate window the broker stores it once, later again.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

from spawner.records.base_record import Record

CLEAR_AFTER: Final = 10.0
"""Seconds after which a published event is removed from its record, if no other write has removed it.

Tasks that wait for their turn for less take no write for it. Far below the duplicate window of events: a spawner that
is started again within it publishes none twice.
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
        """These were published, and are still in the stored record."""
        self._published[key] = self._published.get(key, frozenset()).union(published)
        self.postpone(key)

    def postpone(self, key: str) -> None:
        """Try to clear this record `CLEAR_AFTER` from now."""
        self._due.append((asyncio.get_running_loop().time() + CLEAR_AFTER, key))
        self._added.set()

    def cleared(self, record: RecordT) -> RecordT:
        """The record without what was published; the same object if that is nothing."""
        published = self._published.get(record.key)
        return record.without(published) if published and published.intersection(record.outbox) else record

    def written(self, record: Record) -> None:
        """A record is stored like this: what was published and is no longer in it is not remembered."""
        published = self._published.get(record.key)
        if published is None:
            return
        remaining = published.intersection(record.outbox)
        if remaining:
            self._published[record.key] = remaining
        else:
            del self._published[record.key]

    def keys(self) -> list[str]:
        """The records with published events."""
        return list(self._published)

    def drop(self, key: str) -> None:
        """A record was removed."""
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
