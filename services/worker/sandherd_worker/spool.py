"""The spool: stores records on the sandbox's disk until the broker has acknowledged them.

`append` returns a future that is done when an fsync has covered the record; many records share one fsync. Only durable
records are handed to the uplink: a sequence number that the broker has seen is never used twice.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd_worker import spool_cursor
from sandherd_worker.spool_cursor import SpoolCursor
from sandherd_worker.spool_disk import SpoolDisk, SpoolError, SpoolFullError, SpoolSegment, new_segment, spool_error
from sandherd_worker.spool_file import RecordMark, SpoolRecord, encode
from sandherd_worker.spool_writer import SpoolWriter

SEGMENT_BYTES: Final = 4 * 1024 * 1024
_BATCH_BYTES: Final = 4 * 1024 * 1024
_FINAL_EVENT_BYTES: Final = 1024 * 1024
_CURSOR_PAUSE: Final = 0.2


class _Waiting(NamedTuple):
    block: bytes
    record: SpoolRecord
    done: asyncio.Future[None]
    use_reserve: bool


class Spool:
    """The records of one sandbox, numbered from 1, in the order in which they were appended."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._disk, self._limit = SpoolDisk(directory), limit
        self._writer = SpoolWriter()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes, self._committing = 0, False
        self._saving: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._trouble: SpoolError | None = None
        self.segments: list[SpoolSegment] = []
        self.damage: Sequence[str] = ()
        self.acknowledged, self._sequence, self._mark = 0, 0, RecordMark.NONE
        self._recover()

    @classmethod
    def open(cls, directory: Path, *, limit: int) -> "Spool":
        """The spool in this directory, created if necessary. Raises `SpoolError`."""
        return cls(directory, limit)

    @property
    def sequence(self) -> int:
        """The highest sequence number that was assigned."""
        return self._sequence

    @property
    def ended(self) -> bool:
        """Whether an event that ends the attempt was appended, in this run or an earlier one."""
        return RecordMark.TERMINAL in self._mark

    @property
    def closed(self) -> bool:
        """Whether the source's last event was appended."""
        return RecordMark.LAST_EVENT in self._mark

    @property
    def durable(self) -> int:
        """The number of the last durable record."""
        return self.segments[-1].last

    @property
    def depth(self) -> int:
        """How many records the broker has not acknowledged."""
        return self.durable - self.acknowledged + len(self._queue)

    @property
    def backlog(self) -> int:
        """Size in bytes of the segments with unacknowledged records."""
        return sum(segment.size for segment in self.segments if segment.last > self.acknowledged)

    @property
    def free_bytes(self) -> int:
        """How many bytes the spool can still store, if nothing else fills the disk."""
        left = self._limit - sum(segment.size for segment in self.segments)
        return max(0, min(left, self._disk.free()) - self._queued_bytes)

    @property
    def trouble(self) -> SpoolError | None:
        """Why the spool accepts only the final records; None while it works."""
        return self._trouble

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; checked when records become durable or acknowledged, or on an error."""
        while not condition():
            await self._changed.wait()

    def listen(self, callback: Callable[[], None]) -> None:
        """Call this function, too, whenever `until` would check its condition."""
        self._listeners.append(callback)

    def allocate(self) -> None:
        """Begin to create the file of the next record, if there is none, so that the record is on disk sooner."""
        allocate = partial(self._disk.allocate, self._segment())
        self._writer.call(allocate, lambda _error: None)  # the write of that record reports the error

    def append(self, record: SpoolRecord, *, use_reserve: bool = False) -> asyncio.Future[None]:
        """Append a record. The future is done when it is durable. Raises `SpoolError`; so does the future."""
        block = encode(record)
        self._check_space(len(block), use_reserve=use_reserve)
        waiting = _Waiting(block, record, asyncio.get_running_loop().create_future(), use_reserve)
        self._queue.append(waiting)
        self._queued_bytes += len(block)
        self._sequence = max(self._sequence, record.sequence)
        self._mark |= record.mark
        if not self._committing:
            self._committing = True
            asyncio.get_running_loop().call_soon(self._commit)  # later, with all records that are appended until then
        return waiting.done

    def append_event(self, make: Callable[[int], SpoolRecord], *, use_reserve: bool = False) -> asyncio.Future[None]:
        """Append the record that `make` builds for the next sequence number; it may append artifacts before."""
        return self.append(make(self._sequence + 1), use_reserve=use_reserve)

    def acknowledge(self, number: int) -> None:
        """Note that the broker has stored this record and all earlier records."""
        self.acknowledged = max(self.acknowledged, number)
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_soon())
        self._notify()

    async def close(self) -> None:
        """Close the files. If all records are acknowledged, all segments are deleted, which marks a drained spool."""
        await self.until(lambda: not self._committing)
        if self._saving is not None:
            await cancel_and_wait([self._saving], again_after=SHORT_CLEANUP_SECONDS)
        await self._writer.result(self._release_segments)
        self._writer.shutdown()

    def _recover(self) -> None:
        contents = self._disk.open()
        cursor = spool_cursor.load(self._disk.directory)
        segments = contents.segments
        self.acknowledged = max(cursor.acknowledged, segments[0].first - 1) if segments else cursor.acknowledged
        self.segments = segments or [new_segment(self._disk.directory, self.acknowledged + 1)]
        self._sequence = max(contents.sequence, cursor.sequence)
        self._mark = contents.mark | cursor.mark
        self._durable_state = (self._sequence, self._mark)
        self.damage = contents.damage

    def _check_space(self, size: int, *, use_reserve: bool) -> None:
        if self._trouble and (self._trouble.final or not use_reserve):
            raise self._trouble
        used = sum(segment.size for segment in self.segments) + self._queued_bytes
        if used + size > self._limit + (_FINAL_EVENT_BYTES if use_reserve else 0):
            self._fail(SpoolFullError(f"the spool holds {used} bytes; its limit is {self._limit}"), [])
            raise SpoolFullError(f"no space for {size} bytes: the spool's limit is {self._limit}")

    def _commit(self) -> None:
        """Write the waiting records. Records that are appended meanwhile are written together afterwards."""
        if not self._queue:
            self._committing = False
            return
        batch, segment = self._next_batch(), self._segment()
        data = b"".join([waiting.block for waiting in batch])
        last = any(waiting.use_reserve for waiting in batch)
        done = partial(self._committed, segment, batch, len(data))
        self._writer.call(partial(self._disk.write, segment, data, last), done)

    def _committed(self, segment: SpoolSegment, batch: list[_Waiting], size: int, raised: BaseException | None) -> None:
        if raised is None:
            self._add(segment, batch, size)
        else:
            self._fail(spool_error(raised), batch)
        self._commit()

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0].block) <= _BATCH_BYTES):
            batch.append(self._queue.popleft())
            size += len(batch[-1].block)
        self._queued_bytes -= size
        return batch

    def _segment(self) -> SpoolSegment:
        if self.segments[-1].size >= SEGMENT_BYTES:
            self.segments.append(new_segment(self._disk.directory, self.durable + 1))
        return self.segments[-1]

    def _add(self, segment: SpoolSegment, batch: list[_Waiting], size: int) -> None:
        segment.count, segment.size = segment.count + len(batch), segment.size + size
        sequence, mark = self._durable_state
        for waiting in batch:
            sequence, mark = max(sequence, waiting.record.sequence), mark | waiting.record.mark
            if not waiting.done.done():
                waiting.done.set_result(None)
        self._durable_state = (sequence, mark)
        self._notify()

    def _fail(self, error: SpoolError, batch: list[_Waiting]) -> None:
        """Discard the records that are not durable, and reuse their numbers. From now on accept only final records."""
        self._trouble = self._trouble if self._trouble and self._trouble.final else error
        for waiting in (*batch, *(self._queue if batch else ())):
            if not waiting.done.done():
                waiting.done.set_exception(error)
        if batch:
            self._queue.clear()
            self._queued_bytes = 0
            self._sequence, self._mark = self._durable_state
        self._notify()

    async def _save_soon(self) -> None:
        await asyncio.sleep(_CURSOR_PAUSE)
        droppable = self._droppable()
        if await self._writer.result(partial(self._save, droppable)):
            self.segments = self.segments[len(droppable) :]

    def _droppable(self) -> list[SpoolSegment]:
        return [segment for segment in self.segments[:-1] if segment.last <= self.acknowledged]

    def _save(self, droppable: Sequence[SpoolSegment]) -> bool:
        sequence, mark = self._durable_state
        cursor = SpoolCursor(self.acknowledged, sequence, RecordMark.TERMINAL in mark, RecordMark.LAST_EVENT in mark)
        try:
            spool_cursor.save(self._disk.directory, cursor, durably=bool(droppable))
            if droppable:
                self._disk.remove(droppable)
        except OSError:
            # An old cursor and a leftover segment are harmless: the broker drops duplicates.
            return False
        return True

    def _release_segments(self) -> None:
        self._disk.free_reserve()  # a full disk has no space for the cursor, without which no segment may be deleted
        self._save(self.segments if self.acknowledged >= self.durable else self._droppable())
        self._disk.close(self.segments)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in self._listeners:
            listener()
