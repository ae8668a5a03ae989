"""The spool: what was said waits here, on the sandbox's disk, until the broker has acknowledged it.

`append` returns a future that is done when an fsync has covered the record; many records share one fsync. Only
durable records are handed to the uplink: a sequence number that the broker has seen is never used twice.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd_worker import spool_cursor
from sandherd_worker.spool_cursor import Cursor
from sandherd_worker.spool_disk import Disk, Segment, SpoolBrokenError, SpoolError, SpoolFullError, new_segment
from sandherd_worker.spool_file import Mark, Record, encode
from sandherd_worker.tasks import end_tasks

SEGMENT_BYTES: Final = 4 * 1024 * 1024
_BATCH_BYTES: Final = 4 * 1024 * 1024
_LAST_WORDS_BYTES: Final = 1024 * 1024
_CURSOR_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Waiting:
    block: bytes
    record: Record
    done: asyncio.Future[None]
    last_words: bool


class Spool:
    """The records of one sandbox, numbered from 1, in the order in which they were appended."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._disk = Disk(directory)
        self._limit = limit
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._committing: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._trouble: SpoolError | None = None
        self._sequence = 0
        self._mark = Mark.NONE
        self.acknowledged = 0
        self.segments: list[Segment] = []
        self.damage: Sequence[str] = ()
        self._recover()

    @classmethod
    def open(cls, directory: Path, *, limit: int) -> "Spool":
        """The spool in this directory, made if need be. Raises `SpoolError`."""
        return cls(directory, limit)

    # --- what is known of it

    @property
    def sequence(self) -> int:
        """The highest sequence number that was given out."""
        return self._sequence

    @property
    def ended(self) -> bool:
        """Whether an event that ends the attempt was said, in this run or an earlier one."""
        return Mark.TERMINAL in self._mark

    @property
    def closed(self) -> bool:
        """Whether the last word was said."""
        return Mark.LAST_WORD in self._mark

    @property
    def durable(self) -> int:
        """The number of the last record that is safe on the disk."""
        return self.segments[-1].last

    @property
    def depth(self) -> int:
        """How many records the broker has not acknowledged."""
        return self.durable - self.acknowledged + len(self._queue)

    @property
    def backlog(self) -> int:
        """About how many bytes the broker has not acknowledged: whole segments, less what is known to be gone."""
        return sum(segment.size for segment in self.segments if segment.last > self.acknowledged)

    @property
    def room(self) -> int:
        """How many bytes it still takes, if nothing else takes them first."""
        left = self._limit - sum(segment.size for segment in self.segments)
        return max(0, min(left, self._disk.free()) - self._queued_bytes)

    @property
    def trouble(self) -> SpoolError | None:
        """Why it takes no more but the last words; None while all is well."""
        return self._trouble

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until this holds; it is looked at whenever records become durable or acknowledged, or trouble comes."""
        while not condition():
            await self._changed.wait()

    def listen(self, callback: Callable[[], None]) -> None:
        """Call this, too, whenever `until` would look."""
        self._listeners.append(callback)

    # --- taking

    def append(self, record: Record, *, last_words: bool = False) -> asyncio.Future[None]:
        """Take a record. The future is done when it is on the disk. Raises `SpoolError`; so does the future."""
        block = encode(record)
        self._check_room(len(block), last_words=last_words)
        waiting = _Waiting(block, record, asyncio.get_running_loop().create_future(), last_words)
        self._queue.append(waiting)
        self._queued_bytes += len(block)
        self._sequence = max(self._sequence, record.sequence)
        self._mark |= record.mark
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._commit_all())
        return waiting.done

    def append_event(self, make: Callable[[int], Record], *, last_words: bool = False) -> asyncio.Future[None]:
        """Take the record that `make` builds for the next sequence number. If it raises, the number is not used."""
        return self.append(make(self._sequence + 1), last_words=last_words)

    # --- giving

    def acknowledge(self, number: int) -> None:
        """The broker has this record and all before it."""
        self.acknowledged = max(self.acknowledged, number)
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_soon())
        self._notify()

    async def close(self) -> None:
        """Let go of the disk. If all is acknowledged, no segment is left: that is how a drained spool is known."""
        if self._committing is not None:
            await asyncio.wait([self._committing])
        if self._saving is not None:
            await end_tasks([self._saving])
        await asyncio.get_running_loop().run_in_executor(self._writer, self._let_go)
        self._writer.shutdown()

    def _recover(self) -> None:
        found = self._disk.open()
        cursor = spool_cursor.load(self._disk.directory)
        known = found.segments
        self.acknowledged = max(cursor.acknowledged, known[0].first - 1) if known else cursor.acknowledged
        self.segments = known or [new_segment(self._disk.directory, self.acknowledged + 1)]
        self._sequence = max(found.sequence, cursor.sequence)
        self._mark = found.mark | cursor.mark
        self._kept = (self._sequence, self._mark)
        self.damage = found.damage

    def _check_room(self, size: int, *, last_words: bool) -> None:
        if isinstance(self._trouble, SpoolBrokenError) or (self._trouble and not last_words):
            raise self._trouble
        used = sum(segment.size for segment in self.segments) + self._queued_bytes
        if used + size > self._limit + (_LAST_WORDS_BYTES if last_words else 0):
            self._fail(SpoolFullError(f"the spool holds {used} bytes; its limit is {self._limit}"), [])
            raise SpoolFullError(f"no room for {size} bytes: the spool's limit is {self._limit}")

    async def _commit_all(self) -> None:
        while self._queue:
            batch = self._next_batch()
            segment = self._segment()
            data = b"".join(waiting.block for waiting in batch)
            last = any(waiting.last_words for waiting in batch)
            try:
                await asyncio.get_running_loop().run_in_executor(self._writer, self._disk.write, segment, data, last)
            except SpoolError as error:
                self._fail(error, batch)
            else:
                self._keep(segment, batch, len(data))

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0].block) <= _BATCH_BYTES):
            batch.append(self._queue.popleft())
            size += len(batch[-1].block)
        self._queued_bytes -= size
        return batch

    def _segment(self) -> Segment:
        if self.segments[-1].size >= SEGMENT_BYTES:
            self.segments.append(new_segment(self._disk.directory, self.durable + 1))
        return self.segments[-1]

    def _keep(self, segment: Segment, batch: list[_Waiting], size: int) -> None:
        segment.count += len(batch)
        segment.size += size
        sequence, mark = self._kept
        for waiting in batch:
            sequence, mark = max(sequence, waiting.record.sequence), mark | waiting.record.mark
            if not waiting.done.done():
                waiting.done.set_result(None)
        self._kept = (sequence, mark)
        self._notify()

    def _fail(self, error: SpoolError, batch: list[_Waiting]) -> None:
        """What is not on the disk was not said: its numbers are free again. Only the last words are taken from here."""
        self._trouble = self._trouble if isinstance(self._trouble, SpoolBrokenError) else error
        for waiting in (*batch, *(self._queue if batch else ())):
            if not waiting.done.done():
                waiting.done.set_exception(error)
        if batch:
            self._queue.clear()
            self._queued_bytes = 0
            self._sequence, self._mark = self._kept
        self._notify()

    async def _save_soon(self) -> None:
        await asyncio.sleep(_CURSOR_PAUSE)
        gone = self._droppable()
        if await asyncio.get_running_loop().run_in_executor(self._writer, self._save, gone):
            self.segments = self.segments[len(gone) :]

    def _droppable(self) -> list[Segment]:
        return [segment for segment in self.segments[:-1] if segment.last <= self.acknowledged]

    def _save(self, gone: Sequence[Segment]) -> bool:
        sequence, mark = self._kept
        cursor = Cursor(self.acknowledged, sequence, Mark.TERMINAL in mark, Mark.LAST_WORD in mark)
        try:
            spool_cursor.save(self._disk.directory, cursor, durably=bool(gone))
            if gone:
                self._disk.remove(gone)
        except OSError:
            # An old cursor and a segment too many are harmless: the broker drops what it has already.
            return False
        return True

    def _let_go(self) -> None:
        self._disk.give_up_reserve()  # a full disk has no room for the cursor, without which no segment may go
        self._save(self.segments if self.acknowledged >= self.durable else self._droppable())
        self._disk.close(self.segments)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in self._listeners:
            listener()
