"""Reads the stream for all partitions that a replica holds, and folds each event into its partition.

New events are read once for all partitions. A partition whose lease was just acquired first reads the events that were
stored since its snapshot. Until then it is late, and does not act.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from datetime import datetime
from typing import Final

from monitor.event_decoder import ENDS_ATTEMPT, read
from monitor.event_reader import EventBatch, EventReader
from monitor.partition import Partition
from monitor.partition_plan import partition_of, partition_of_subject
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.bus.consumers.pull import REBIND_DELAY_SECONDS, ConsumerUnresponsiveError
from sandherd.bus.stream_bounds import StreamBounds
from sandherd.concurrency import run_until_first
from sandherd.contracts.events.monitor import MonitorFindingAssessed
from sandherd.telemetry import logs

_TYPES_FOR_EVERY_PARTITION: Final = frozenset({*ENDS_ATTEMPT, MonitorFindingAssessed.type})
"""Types of events whose subject does not name the sandbox, or that concern every partition."""
_MAX_DISTANCE: Final = 20_000
"""Late partitions that are at most this number of events behind the foremost late partition catch up together."""
_MAX_EMPTY_READS: Final = 3
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
        self._holds_partition = asyncio.Event()
        self._may_be_late = asyncio.Event()
        """Set when there may be late partitions, which have to catch up."""
        self._empty_reads = 0
        self.reader = EventReader(bus, self._is_wanted)
        self.partitions: dict[int, Partition] = {}
        self.position: int | None = None
        """The position up to which new events were read; None while new events are not read."""
        self.read_at: datetime | None = None
        """When the last of these events was stored."""

    def add(self, partition: Partition) -> None:
        """Start reading for a partition, which is late at first."""
        self.partitions[partition.partition_id.number] = partition
        self._holds_partition.set()
        self._may_be_late.set()

    def remove(self, partition: Partition) -> None:
        """Stop reading for a partition."""
        if self.partitions.get(partition.partition_id.number) is partition:
            del self.partitions[partition.partition_id.number]

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
                self._holds_partition.clear()
                await self._holds_partition.wait()
            try:
                await self._read_new()
            except ConsumerUnresponsiveError as error:
                _log.warning("stream not responding, reading again", position=self.position, error=str(error))
                self._fall_behind()
                await asyncio.sleep(REBIND_DELAY_SECONDS)

    async def _read_new(self) -> None:
        """Read new events from the end of the stream on, as long as there is a partition."""
        self.position = await self.reader.start()
        self._may_be_late.set()
        while self.partitions:
            batch = await self.reader.next_batch()
            on_time = [partition for partition in self.partitions.values() if not partition.is_late]
            self._dispatch(batch, on_time)
            self.position, self.read_at = batch.position, batch.at
            for partition in on_time:
                await self._on_new(partition)
        self._fall_behind()
        await self.reader.stop()

    def _fall_behind(self) -> None:
        """Mark all partitions as late, so that they catch up again."""
        self.position = None
        for partition in self.partitions.values():
            partition.caught_up.clear()
            partition.read_until = None

    def _is_wanted(self, subject: str) -> bool:
        return _concerns(subject, self._count, self.partitions)

    def _dispatch(self, batch: EventBatch, partitions: Sequence[Partition]) -> None:
        by_number = {partition.partition_id.number: partition for partition in partitions}
        for event in batch.events:
            if _concerns(event.subject, self._count, by_number):
                self._dispatch_event(event, by_number)
        for partition in partitions:
            partition.record_read(batch.position)

    def _dispatch_event(self, event: Delivery, by_number: Mapping[int, Partition]) -> None:
        observed = read(event.subject, event.data, event.stream_sequence, event.at)
        if observed is None:
            return
        number = partition_of(observed.project, observed.entity, self._count)
        if number in by_number:
            by_number[number].fold(observed)
        if observed.type == MonitorFindingAssessed.type:
            for other in by_number.values():
                if other.partition_id.number != number:
                    other.record_assessment(observed)

    # --- catching up -------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        while True:
            self._may_be_late.clear()
            late = [partition for partition in self.partitions.values() if partition.is_late]
            if not late or self.position is None:
                await self._may_be_late.wait()
                continue
            try:
                await self._read_for(late)
            except ConsumerUnresponsiveError as error:
                _log.warning("stream not responding, reading again", position=self.position, error=str(error))
                await asyncio.sleep(REBIND_DELAY_SECONDS)

    async def _read_for(self, late: Sequence[Partition]) -> None:
        """Read the next events for the late partitions that are nearest to the end of the stream."""
        if any(partition.read_until is None for partition in late):
            bounds = await self.reader.bounds()
            for partition in late:
                _record_end(partition, bounds)
        foremost = max(partition.herd.position for partition in late)
        nearest = [partition for partition in late if foremost - partition.herd.position <= _MAX_DISTANCE]
        first, numbers = (
            min(partition.herd.position for partition in nearest) + 1,
            {partition.partition_id.number for partition in nearest},
        )
        batch, end = None, self._end_for(nearest)
        if first <= end:
            batch = await self.reader.read_from(first, lambda subject: _concerns(subject, self._count, numbers))
        is_end = batch is None and (first > end or await self._is_end(first))
        nearest = [
            partition for partition in nearest if self.partitions.get(partition.partition_id.number) is partition
        ]
        if batch is not None:
            self._empty_reads = 0
            self._dispatch(batch, nearest)
        if is_end:
            for partition in nearest:
                partition.record_read(end)
        joined = [partition for partition in nearest if self._joins(partition)]
        for partition in joined:
            await self._on_joined(partition)

    def _end_for(self, partitions: Sequence[Partition]) -> int:
        return max(self.position or 0, *(partition.read_until or 0 for partition in partitions))

    async def _is_end(self, first: int) -> bool:
        """Whether there are no more events, because the last ones of the stream were deleted.

        After several empty reads the stream's leader is queried.
        """
        self._empty_reads = (self._empty_reads + 1) % _MAX_EMPTY_READS
        if not self._empty_reads and not await self.reader.has_after(first):
            return True
        await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
        return False

    def _joins(self, partition: Partition) -> bool:
        """Whether a partition has read all events before the new ones, so that it receives the new ones from now on."""
        if self.position is None or partition.read_until is None:
            return False
        if partition.herd.position >= max(self.position, partition.read_until):
            partition.caught_up.set()
        return not partition.is_late


def _concerns(subject: str, count: int, partitions: Container[int]) -> bool:
    """Whether an event may be about a sandbox of these partitions."""
    if partition_of_subject(subject, count) in partitions:
        return True
    return ".".join(subject.split(".")[-2:]) in _TYPES_FOR_EVERY_PARTITION


def _record_end(partition: Partition, bounds: StreamBounds) -> None:
    if partition.read_until is None:
        partition.read_until = bounds.last
        if 0 < partition.herd.position < bounds.first - 1:
            _log.warning(
                "events after the snapshot are no longer in the stream",
                position=partition.herd.position,
                first=bounds.first,
            )
