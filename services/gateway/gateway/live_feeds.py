"""Live events: one subscription per project, shared by all clients of this replica.

A live message only shows that there is a new event. The events themselves are read from the stream, once for all
clients, so that none is missing or duplicated even if the subscription loses messages.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from gateway.frame_queues import FEED_BYTES, QUEUE_EVENTS, FrameQueue, end_slowest
from gateway.stream_reader import EventFrame, StreamReader, frame_of, subject_of
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage
from sandherd.client.errors import HerdError
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.headers import SEQUENCE_HEADER
from sandherd.contracts.streams import live_subject
from sandherd.telemetry import logs

_MIN_BATCH_BYTES: Final = 64 * 1024
"""Bytes of stored events that a client may always read at once, however many clients there are."""
MAX_STREAMS_OF_PROJECT: Final = 1500
"""Maximum number of streams of one project at a replica, so that connections remain for other projects."""
_POLL_SECONDS: Final = 5.0
"""Seconds without a live message after which the stream is read nevertheless, because live messages may be lost."""
_RETRY_SECONDS: Final = 0.5
_LAG_SECONDS: Final = 0.02
"""Seconds until the stream is read again if the event of a live message can't be read yet."""
_EVENTS_PER_CHECK: Final = 16
"""The size of all queues is checked at every event whose sequence is a multiple of this number."""
_log: Final = logs.get("live")


class ProjectFeed:
    """The events of one project, read once for all of its clients."""

    def __init__(self, bus: Bus, project: str, reader: StreamReader, queue_events: int = QUEUE_EVENTS) -> None:
        self.clients: set[FrameQueue] = set()
        self.stream_count = 0  # also of streams that still read stored events
        self._bus = bus
        self._project = project
        self._reader = reader
        self._queue_events = queue_events
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._next_sequence = 0
        self._last_live_sequence = 0
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Subscribe, and begin to read new events. Raises one of `READ_ERRORS`."""
        if self._task is not None:
            return
        if self._subscription is None:  # otherwise the last start failed after this step
            live = live_subject(subject_of(self._project, None))
            self._subscription = await self._bus.client.subscribe(live, cb=self._on_message)
        await self._bus.flush()
        self._next_sequence = (await self._reader.state()).last + 1
        self._task = asyncio.create_task(self._run(), name=f"feed {self._project}")

    async def stop(self) -> None:
        """Stop reading, and unsubscribe."""
        await cancel_and_wait([self._task] if self._task is not None else [])
        self._task = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self._bus.closed:
            with suppress(nats.errors.Error):  # not connected: the broker has already removed it
                await subscription.unsubscribe()

    def join(self, entity: str | None) -> FrameQueue:
        """The queue of a new client, which gets every event from its `begin` on."""
        queue = FrameQueue(entity, self._next_sequence, self._queue_events)
        self.clients.add(queue)
        return queue

    async def _on_message(self, message: Msg) -> None:
        self._last_live_sequence = max(self._last_live_sequence, int((message.headers or {}).get(SEQUENCE_HEADER, 0)))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._read_new()
            except READ_ERRORS as error:
                _log.warning("events not read, retrying", project=self._project, error=repr(error))
                await asyncio.sleep(_RETRY_SECONDS)

    def _offer(self, frame: EventFrame) -> None:
        for client in self.clients:
            client.offer(frame)
        if frame.sequence % _EVENTS_PER_CHECK == 0:
            end_slowest(self.clients)

    async def _read_new(self) -> None:
        """Read new events. If there are none, wait for a live message."""
        self._wake.clear()
        messages = await self._reader.batch(subject_of(self._project, None), self._next_sequence)
        for stored in messages:
            frame = frame_of(stored)
            # No `await` between these steps, so that a client that joins gets exactly the events from its `begin` on.
            self._next_sequence = stored.sequence + 1
            if frame is not None:
                self._offer(frame)
        if not messages:
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    _LAG_SECONDS if self._last_live_sequence >= self._next_sequence else _POLL_SECONDS
                ):
                    await self._wake.wait()


class LiveFeeds:
    """The feeds of all projects that have clients at present."""

    def __init__(self, bus: Bus, queue_events: int = QUEUE_EVENTS) -> None:
        self._bus = bus
        self._queue_events = queue_events
        self._feeds: dict[str, ProjectFeed] = {}
        self._starting = asyncio.Lock()
        self.reader = StreamReader(bus)

    @property
    def clients(self) -> int:
        """The number of clients that receive live events."""
        return sum(feed.stream_count for feed in self._feeds.values())

    @asynccontextmanager
    async def of(self, project: str) -> AsyncIterator[ProjectFeed]:
        """The feed of a project, shared with its other clients.

        Raises one of `READ_ERRORS`, or `HerdError` (`busy`).
        """
        feed = self._feeds.setdefault(project, ProjectFeed(self._bus, project, self.reader, self._queue_events))
        if feed.stream_count >= MAX_STREAMS_OF_PROJECT:
            text = f"the project has {MAX_STREAMS_OF_PROJECT} open streams at this replica"
            raise HerdError(Problem(code=Code.BUSY, message=text, remedy="close some", retry_after_seconds=5))
        feed.stream_count += 1
        try:
            async with self._starting:
                await feed.start()
            yield feed
        finally:
            feed.stream_count -= 1
            if feed.stream_count == 0 and self._feeds.get(project) is feed:
                del self._feeds[project]
                await asyncio.shield(feed.stop())  # also if this stream was cancelled


class EventSource:
    """The events of a project or an entity after a position: first the stored ones, then live ones, each once."""

    def __init__(self, feed: ProjectFeed, reader: StreamReader, project: str, entity: str | None) -> None:
        self._feed = feed
        self._reader = reader
        self._subject = subject_of(project, entity)
        self._entity = entity
        self._queue: FrameQueue | None = None
        self._position = 0

    def beat(self) -> None:
        """Make `frames` return None now if no event waits."""
        if self._queue is not None:
            self._queue.wake()

    @property
    def is_live(self) -> bool:
        """Whether all events that were stored at the beginning were returned."""
        return self._queue is not None

    async def frames(self, after: int, on_overflow: Callable[[], object]) -> AsyncIterator[EventFrame | None]:
        """Every event after the sequence `after`, and None for each `beat` while no event waits.

        `on_overflow` is called when live events are dropped because they are read too slowly.
        """
        self._position = after
        async for frame in self._history(None):
            yield frame
        queue = self._queue = self._feed.join(self._entity)
        queue.on_overflow = on_overflow
        try:
            async for frame in self._history(queue.begin):
                yield frame
            while True:
                live = await queue.take()
                # Stored events may have been read beyond the beginning of the queue: no event is returned twice.
                if live is None or live.sequence > self._position:
                    yield live
        finally:
            self._feed.clients.discard(queue)

    async def _history(self, before: int | None) -> AsyncIterator[EventFrame]:
        """The stored events after the position, up to the sequence `before`."""
        while batch := await self._read_stored(before):
            for stored in batch:
                self._position = stored.sequence
                if (frame := frame_of(stored)) is not None:
                    yield frame

    async def _read_stored(self, before: int | None) -> list[StoredMessage]:
        """The next stored events; retried until the broker responds."""
        while True:
            try:
                max_bytes = max(_MIN_BATCH_BYTES, FEED_BYTES // max(1, self._feed.stream_count))
                messages = await self._reader.batch(self._subject, self._position + 1, max_bytes)
            except READ_ERRORS:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return [stored for stored in messages if before is None or stored.sequence < before]
