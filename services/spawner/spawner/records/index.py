"""An in-memory index of a bucket, for queries over all its records and for change notifications."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from nats.js.kv import KeyValue
from pydantic import ValidationError

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.telemetry import logs
from spawner.records.base_record import IndexEntry, Record, StoreUnavailableError
from spawner.records.store import StoredRecord

_CHECK: Final = 5.0
"""Seconds without a change after which a watch is checked, and the timeout of `catch_up` in seconds."""
_PAUSE: Final = 0.5
_log: Final = logs.get("records.index")

RecordT = TypeVar("RecordT", bound=Record)
ViewT = TypeVar("ViewT")


class Index(Generic[RecordT, ViewT]):
    """The newest known state of every record of one bucket, from the writes of this process and from a watch."""

    def __init__(self, bucket: str, model: type[RecordT], view: Callable[[RecordT], ViewT]) -> None:
        self._bucket = bucket
        self._model = model
        self._view = view
        self._known: dict[str, IndexEntry[ViewT]] = {}
        self._listeners: list[Callable[[str, ViewT], None]] = []
        self._removal_listeners: list[Callable[[str], None]] = []
        self._sizes: Counter[str] = Counter()
        self._seen = 0
        self._moved = asyncio.Event()
        self._behind: int | None = None
        self._writing: Counter[str] = Counter()
        self._deferred: dict[str, KeyValue.Entry] = {}
        self.complete = asyncio.Event()
        """Set when every record that was in the bucket at the start is indexed."""

    def on_change(self, callback: Callable[[str, ViewT], None]) -> None:
        """From now on, call `callback(key, view)` for every record that is new or changed."""
        self._listeners.append(callback)

    def on_removal(self, callback: Callable[[str], None]) -> None:
        """From now on, call `callback(key)` for every record that is removed."""
        self._removal_listeners.append(callback)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> IndexEntry[ViewT] | None:
        """The entry of one record, or None."""
        return self._known.get(key)

    def revision(self, key: str) -> int | None:
        """The newest known revision of a record, or None."""
        known = self._known.get(key)
        return known.revision if known is not None else None

    def items(self) -> Iterator[tuple[str, IndexEntry[ViewT]]]:
        """A snapshot of all keys and their entries."""
        return iter(list(self._known.items()))

    def views(self) -> Iterator[ViewT]:
        """Every record's view."""
        return (known.view for known in list(self._known.values()))

    def size_of(self, project: str) -> int:
        """The bytes of all records of a project."""
        return self._sizes[project]

    def size(self) -> int:
        """The bytes of all records."""
        return self._sizes.total()

    def update(self, held: StoredRecord[RecordT]) -> None:
        """Index a record, unless a newer revision of it is known."""
        record = held.record
        known = self._known.get(record.key)
        if known is not None and known.revision >= held.revision:
            return
        view = self._view(record)
        self._known[record.key] = IndexEntry(held.revision, view, bool(record.outbox), record.runtime_unit, held.size)
        self._sizes[project_of(record.key)] += held.size - (known.size if known else 0)
        for callback in self._listeners:
            callback(record.key, view)

    def remove(self, key: str, revision: int) -> None:
        """Drop a record that was removed at this revision."""
        known = self._known.get(key)
        if known is not None and known.revision < revision:
            self._drop(key)

    @contextmanager
    def writing(self, key: str) -> Iterator[None]:
        """A context in which this process writes the record. Changes of it from the watch are applied at the end.

        A watch usually delivers a write before the acknowledgement. At the end the write is indexed already, so the
        message from the watch need not be parsed.
        """
        self._writing[key] += 1
        try:
            yield
        finally:
            self._writing[key] -= 1
            if not self._writing[key]:
                del self._writing[key]
                entry = self._deferred.pop(key, None)
                if entry is not None:
                    self._apply(entry)
                    self._moved.set()

    async def follow(self, bus: Bus) -> None:
        """Follow the bucket until cancelled. A watch that stops delivering is detected and restarted."""
        while True:
            try:
                await self._watch(bus, await bus.js.key_value(self._bucket))
            except BROKER_ERRORS as error:
                _log.warning("watch failed, restarting", bucket=self._bucket, error=repr(error))
            await asyncio.sleep(_PAUSE)

    async def catch_up(self, bus: Bus) -> None:
        """Wait until all present records of the bucket are indexed. Raises `StoreUnavailableError` after 5 s."""
        try:
            async with asyncio.timeout(_CHECK):
                last = await self._last(bus)
                while self._seen < last or self._deferred:
                    self._moved.clear()
                    await self._moved.wait()
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"{self._bucket} is not fully indexed: {error!r}") from error

    async def _watch(self, bus: Bus, kv: KeyValue) -> None:
        """Run one watch until it stops delivering. A watch first delivers the current state of every key."""
        floor = await self._last(bus)
        watcher = await kv.watchall()
        present: set[str] = set()
        begun = self._seen
        initial = True
        try:
            while True:
                try:
                    # Not by `watcher.updates`, which swallows cancellations in Python 3.11.
                    async with asyncio.timeout(_CHECK):
                        entry = await anext(watcher)
                except TimeoutError:
                    if await self._is_behind(bus):
                        return
                    continue
                if entry is None:
                    initial = False
                    self._drop_others(present, begun)
                    self._set_revision(floor)
                    self.complete.set()
                    continue
                if initial:
                    present.add(entry.key)
                self._receive(entry)
        finally:
            if not bus.closed:
                await watcher.stop()  # type: ignore[no-untyped-call]  # nats-py

    def _set_revision(self, revision: int) -> None:
        self._seen = max(self._seen, revision)
        self._moved.set()

    def _receive(self, entry: KeyValue.Entry) -> None:
        """Apply a change from the watch, unless this process is writing the same record."""
        if entry.key in self._writing:
            self._deferred[entry.key] = entry
        else:
            self._apply(entry)
        self._set_revision(entry.revision or 0)

    def _apply(self, entry: KeyValue.Entry) -> None:
        revision = entry.revision or 0
        if entry.operation is not None:
            self.remove(entry.key, revision)
            return
        if revision <= (self.revision(entry.key) or 0):  # a write of this process, which is indexed already
            return
        try:
            document = entry.value or b""
            self.update(StoredRecord(self._model.model_validate_json(document), revision, len(document)))
        except ValidationError as error:
            # Written by an incompatible version: left unchanged, and logged.
            _log.error("record unreadable", bucket=self._bucket, key=entry.key, error=str(error)[:300])

    def _drop_others(self, present: set[str], begun: int) -> None:
        """Drop records that were removed while no watch was running."""
        for key, known in list(self._known.items()):
            if key not in present and known.revision <= begun:
                self._drop(key)

    def _drop(self, key: str) -> None:
        self._sizes[project_of(key)] -= self._known.pop(key).size
        for callback in self._removal_listeners:
            callback(key)

    async def _is_behind(self, bus: Bus) -> bool:
        """Whether the watch still lacks a message that was in the bucket at the previous check."""
        missed = self._behind is not None and self._seen < self._behind
        last = await self._last(bus)
        self._behind = last if last > self._seen else None
        return missed

    async def _last(self, bus: Bus) -> int:
        info: Any = await bus.js.stream_info(f"KV_{self._bucket}")
        return int(info.state.last_seq)


def project_of(key: str) -> str:
    """The project of a record: the first part of its key."""
    return key.partition(".")[0]
