"""What is in a bucket, in memory: for questions about all of it, and for being told when something changes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue
from pydantic import ValidationError

from sandherd.bus.connection import Bus
from sandherd.telemetry import logs
from spawner.records.known import Known
from spawner.records.record import Record
from spawner.records.store import Held
from spawner.records.unavailable import StoreUnavailableError

_CHECK: Final = 5.0
_PAUSE: Final = 0.5
_log: Final = logs.get("records")

RecordT = TypeVar("RecordT", bound=Record)
ViewT = TypeVar("ViewT")


class Index(Generic[RecordT, ViewT]):
    """The newest known state of every record of one bucket, from our own writes and from a watch for all others'."""

    def __init__(self, bucket: str, model: type[RecordT], view: Callable[[RecordT], ViewT]) -> None:
        self._bucket = bucket
        self._model = model
        self._view = view
        self._known: dict[str, Known[ViewT]] = {}
        self._listeners: list[Callable[[str, ViewT], None]] = []
        self._mourners: list[Callable[[str], None]] = []
        self._sizes: Counter[str] = Counter()
        self._seen = 0
        self._moved = asyncio.Event()
        self._behind: int | None = None
        self.complete = asyncio.Event()
        """Set once all that was in the bucket at the start is known."""

    def on_change(self, tell: Callable[[str, ViewT], None]) -> None:
        """From now on `tell(key, view)` is called for every record that is new or changed."""
        self._listeners.append(tell)

    def on_removal(self, tell: Callable[[str], None]) -> None:
        """From now on `tell(key)` is called for every record that was removed."""
        self._mourners.append(tell)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Known[ViewT] | None:
        """What is known of one record."""
        return self._known.get(key)

    def items(self) -> Iterator[tuple[str, Known[ViewT]]]:
        """Every key and what is known of it, as of now."""
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

    def heard(self, held: Held[RecordT]) -> None:
        """Take in a record, unless a newer state of it is known."""
        record = held.record
        known = self._known.get(record.key)
        if known is not None and known.revision >= held.revision:
            return
        view = self._view(record)
        self._known[record.key] = Known(held.revision, view, bool(record.outbox), record.alias, held.size)
        self._sizes[project_of(record.key)] += held.size - (known.size if known else 0)
        for tell in self._listeners:
            tell(record.key, view)

    def forget(self, key: str, revision: int) -> None:
        """A record was removed, at this revision."""
        known = self._known.get(key)
        if known is not None and known.revision < revision:
            self._drop(key)

    async def follow(self, bus: Bus) -> None:
        """Keep up with the bucket until cancelled. A watch that has gone deaf is noticed and begun again."""
        while True:
            try:
                await self._watch(bus, await bus.js.key_value(self._bucket))
            except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
                _log.warning("watching again", bucket=self._bucket, error=repr(error))
            await asyncio.sleep(_PAUSE)

    async def catch_up(self, bus: Bus) -> None:
        """Return once all that is in the bucket now was heard. Raises `StoreUnavailableError` if that takes long."""
        try:
            async with asyncio.timeout(_CHECK):
                last = await self._last(bus)
                while self._seen < last:
                    self._moved.clear()
                    await self._moved.wait()
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
            raise StoreUnavailableError(f"{self._bucket} is not known to its end: {error!r}") from error

    async def _watch(self, bus: Bus, kv: KeyValue) -> None:
        """One watch, until it turns out to be deaf. It begins with the last state of every key."""
        floor = await self._last(bus)
        watcher = await kv.watchall()
        present: set[str] = set()
        begun = self._seen
        initial = True
        try:
            while True:
                try:
                    # Not its own `updates`: that waits in a way that swallows cancellations in Python 3.11.
                    async with asyncio.timeout(_CHECK):
                        entry = await anext(watcher)
                except TimeoutError:
                    if await self._deaf(bus):
                        return
                    continue
                if entry is None:
                    initial = False
                    self._drop_others(present, begun)
                    self._see(floor)
                    self.complete.set()
                    continue
                if initial:
                    present.add(entry.key)
                self._take(entry)
        finally:
            if not bus.closed:
                await watcher.stop()  # type: ignore[no-untyped-call]  # nats-py

    def _see(self, revision: int) -> None:
        self._seen = max(self._seen, revision)
        self._moved.set()

    def _take(self, entry: KeyValue.Entry) -> None:
        revision = entry.revision or 0
        self._see(revision)
        if entry.operation is not None:
            self.forget(entry.key, revision)
            return
        try:
            document = entry.value or b""
            self.heard(Held(self._model.model_validate_json(document), revision, len(document)))
        except ValidationError as error:
            # Written by a version that this one can't read: it is left alone, and said.
            _log.error("a record that can't be read", bucket=self._bucket, key=entry.key, error=str(error)[:300])

    def _drop_others(self, present: set[str], begun: int) -> None:
        """What was known before and is not there any more was removed while nobody watched."""
        for key, known in list(self._known.items()):
            if key not in present and known.revision <= begun:
                self._drop(key)

    def _drop(self, key: str) -> None:
        self._sizes[project_of(key)] -= self._known.pop(key).size
        for tell in self._mourners:
            tell(key)

    async def _deaf(self, bus: Bus) -> bool:
        """Whether the bucket has had something, for one check already, that the watch did not tell."""
        missed = self._behind is not None and self._seen < self._behind
        last = await self._last(bus)
        self._behind = last if last > self._seen else None
        return missed

    async def _last(self, bus: Bus) -> int:
        info: Any = await bus.js.stream_info(f"KV_{self._bucket}")
        return int(info.state.last_seq)


def project_of(key: str) -> str:
    """The project of a record, which its key begins with."""
    return key.partition(".")[0]
