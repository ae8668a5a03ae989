"""Reads the stream for all partitions that a replica holds, and folds each event into its partition.

New events are read once for all partitions. A partition whose lease was just acquired first reads the events that were
stored since its snapshot. Until then it is late, and does not act.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from datetime import datetime
from typing import Final

from monitor.event_decoder import ENDS_ATTEMPT, read
from monitor.event_reader import EventBatch, EventReader, StreamEnds
from monitor.partition import Partition
from monitor.partition_plan import partition_of, partition_of_subject
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.bus.consumers.pull import REBIND_DELAY_SECONDS, ConsumerUnresponsiveError
from sandherd.concurrency import run_until_first
from sandherd.contracts.events.monitor import MonitorFindingAssessed
from sandherd.telemetry import logs

_EVERYWHERE: Final = frozenset({*ENDS_ATTEMPT, MonitorFindingAssessed.type})
"""Types of events whose subject does not name the sandbox, or which concern every partition."""
_NEAR: Final = 20_000
"""Late partitions that are at most this number of events behind the foremost late one catch up together with it."""
_EMPTY_READS: Final = 3
"""After this number of empty reads the stream's leader is queried, because a replica of the stream may lag behind."""
_EMPTY_PAUSE_SECONDS: Final = 0.1
OnRead = Callable[[Partition], Awaitable[None]]
_log: Final = logs.get("watch")


class StreamFollower:
    """Follows the stream for the partitions that this replica holds, of `count`.

    It calls `on_new` after it has read new events for a partition, and `on_joined` once a late partition has caught up.
    """

    def __init__(self, bus: Bus, count: int, *, on_new: OnRead, on_joined: OnRead) -> None:
        self._count = count
        self._on_new = on_new
        self._on_joined = on_joined
        self._held = asyncio.Event()
        self._behind = asyncio.Event()
        """Set when there may be partitions that have to catch up."""
        self._empty_reads = 0
        self.reader = EventReader(bus, self._is_wanted)
        self.partitions: dict[int, Partition] = {}
        self.position: int | None = None
        """The position up to which new events were read; None while new events are not read."""
        self.read_at: datetime | None = None
        """When the last of these events was stored."""

    def add(self, part: Partition) -> None:
        """Start reading for a partition, which is late at first."""
        self.partitions[part.place.number] = part
        self._held.set()
        self._behind.set()

    def remove(self, part: Partition) -> None:
        """Stop reading for a partition."""
        if self.partitions.get(part.place.number) is part:
            del self.partitions[part.place.number]

    async def run(self) -> None:
        """Follow the stream until cancelled."""
        try:
            await run_until_first(self._follow(), self._catch_up())
        finally:
            await self.reader.stop()

    # --- new events --------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            while not self.partitions:
                self._held.clear()
                await self._held.wait()
            try:
                await self._read_new()
            except ConsumerUnresponsiveError as error:
                _log.warning("stream not responding, reading again", position=self.position, error=str(error))
                self._fall_behind()
                await asyncio.sleep(REBIND_DELAY_SECONDS)

    async def _read_new(self) -> None:
        """Read new events from the end of the stream on, as long as there is a partition."""
        self.position = await self.reader.start()
        self._behind.set()
        while self.partitions:
            batch = await self.reader.next_batch()
            on_time = [part for part in self.partitions.values() if not part.late]
            self._dispatch(batch, on_time)
            self.position, self.read_at = batch.position, batch.at
            for part in on_time:
                await self._on_new(part)
        self._fall_behind()
        await self.reader.stop()

    def _fall_behind(self) -> None:
        """Mark all partitions as late, so that they catch up again."""
        self.position = None
        for part in self.partitions.values():
            part.caught_up.clear()
            part.read_until = None

    def _is_wanted(self, subject: str) -> bool:
        return _concerns(subject, self._count, self.partitions)

    def _dispatch(self, batch: EventBatch, to: Sequence[Partition]) -> None:
        parts = {part.place.number: part for part in to}
        for event in batch.events:
            if _concerns(event.subject, self._count, parts):
                self._dispatch_one(event, parts)
        for part in to:
            part.has_read(batch.position)

    def _dispatch_one(self, event: Delivery, parts: Mapping[int, Partition]) -> None:
        seen = read(event.subject, event.data, event.stream_sequence, event.at)
        if seen is None:
            return
        number = partition_of(seen.project, seen.entity, self._count)
        if number in parts:
            parts[number].fold(seen)
        if seen.type == MonitorFindingAssessed.type:
            for other in parts.values():
                if other.place.number != number:
                    other.note_assessed(seen)

    # --- catching up -------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        while True:
            self._behind.clear()
            late = [part for part in self.partitions.values() if part.late]
            if not late or self.position is None:
                await self._behind.wait()
                continue
            try:
                await self._read_for(late)
            except ConsumerUnresponsiveError as error:
                _log.warning("stream not responding, reading again", position=self.position, error=str(error))
                await asyncio.sleep(REBIND_DELAY_SECONDS)

    async def _read_for(self, late: Sequence[Partition]) -> None:
        """Read the next events for the late partitions that are nearest to the end of the stream."""
        if any(part.read_until is None for part in late):
            ends = await self.reader.ends()
            for part in late:
                _note_end(part, ends)
        foremost = max(part.herd.position for part in late)
        together = [part for part in late if foremost - part.herd.position <= _NEAR]
        first, numbers = min(part.herd.position for part in together) + 1, {part.place.number for part in together}
        batch, end = None, self._end_for(together)
        if first <= end:
            batch = await self.reader.read_from(first, lambda subject: _concerns(subject, self._count, numbers))
        is_end = batch is None and (first > end or await self._is_end(first))
        together = [part for part in together if self.partitions.get(part.place.number) is part]
        if batch is not None:
            self._empty_reads = 0
            self._dispatch(batch, together)
        if is_end:
            for part in together:
                part.has_read(end)
        joined = [part for part in together if self._joins(part)]
        for part in joined:
            await self._on_joined(part)

    def _end_for(self, parts: Sequence[Partition]) -> int:
        return max(self.position or 0, *(part.read_until or 0 for part in parts))

    async def _is_end(self, first: int) -> bool:
        """Whether there are no more events because the stream's last ones were deleted.

        The stream's leader is queried.
        """
        self._empty_reads = (self._empty_reads + 1) % _EMPTY_READS
        if not self._empty_reads and not await self.reader.has_after(first):
            return True
        await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
        return False

    def _joins(self, part: Partition) -> bool:
        """Whether a partition has read all events before the new ones, so that it receives the new ones from now on."""
        if self.position is None or part.read_until is None:
            return False
        if part.herd.position >= max(self.position, part.read_until):
            part.caught_up.set()
        return not part.late


def _concerns(subject: str, count: int, partitions: Container[int]) -> bool:
    """Whether an event may be about a sandbox of these partitions."""
    if partition_of_subject(subject, count) in partitions:
        return True
    return ".".join(subject.split(".")[-2:]) in _EVERYWHERE


def _note_end(part: Partition, ends: StreamEnds) -> None:
    if part.read_until is None:
        part.read_until = ends.last
        if 0 < part.herd.position < ends.first - 1:
            _log.warning(
                "events after the snapshot are no longer in the stream", position=part.herd.position, first=ends.first
            )
