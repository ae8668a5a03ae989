"""The response with Server-Sent Events: frames, heartbeats, and its end."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from gateway.access import AccessError, Caller, TokenReader
from gateway.api_server import CONNECTION, ApiConnection
from gateway.cursors import Start, cursor, start_of
from gateway.frame_queues import FrameQueue
from gateway.guard import Receive, Scope, Send
from gateway.live import EventSource, LiveFeeds
from gateway.problems import problem_of, problem_response
from gateway.stream_reader import NO_REPLY, Frame
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code
from sandherd.telemetry.meters import Meters

HEARTBEAT: Final = 15.0
"""Seconds without an event after which a comment is sent, so that no proxy closes the connection."""
RETRY_MS: Final = 1000
STALL: Final = 30.0
"""Seconds after which a client that takes nothing of what is sent to it is disconnected, also before live events."""
_CLOSING: Final = 5.0
"""Seconds that the end of a stream may take: a client that does not read would otherwise keep the connection."""
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


def message(event: str, identifier: str, data: str) -> bytes:
    """One message of Server-Sent Events. `data` has no line break."""
    return f"event: {event}\nid: {identifier}\ndata: {data}\n\n".encode()


def framed(frame: Frame, epoch: str) -> bytes:
    """The message of an event."""
    return message(frame.type, cursor(epoch, frame.sequence), frame.document)


class EventStreams:
    """What all streams of events of a replica share. `stopping` ends them."""

    def __init__(
        self, feeds: LiveFeeds, tokens: TokenReader, meters: Meters, beat: float = HEARTBEAT, stall: float = STALL
    ) -> None:
        self.feeds = feeds
        self.tokens = tokens
        self.meters = meters
        self.beat = beat
        self.stall = stall
        self.stopping = asyncio.Event()

    def open(self, caller: Caller, entity: str | None, after: str | None) -> "EventStreamResponse":
        """The events of the caller's project, or of one of its tasks and sandboxes, behind a position."""
        return EventStreamResponse(self, caller, entity, after)


class EventStreamResponse(Response):
    """A response that has no end, until the client, the token or the service ends it."""

    def __init__(self, streams: EventStreams, caller: Caller, entity: str | None, after: str | None) -> None:
        super().__init__()
        self._streams = streams
        self._caller = caller
        self._entity = entity
        self._after = after
        self._slow = asyncio.Event()
        self._watching: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or a problem if the broker is unavailable at its beginning."""
        try:
            await self._serve(scope[CONNECTION], receive, send)
        except NO_REPLY as error:
            problem = problem_of(
                Code.UNAVAILABLE, f"the stream of events does not respond: {error!r}", remedy="retry in a moment"
            )
            await problem_response(problem)(scope, receive, send)

    async def _serve(self, connection: ApiConnection, receive: Receive, send: Send) -> None:
        async with self._streams.feeds.of(self._caller.project) as feed:
            source = EventSource(feed, self._streams.feeds.reader, self._caller.project, self._entity)
            state = await self._streams.feeds.reader.state()
            start = start_of(self._after, state)
            connection.stay_open()
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            waits = [
                asyncio.create_task(self._pump(source, state.epoch, start, send)),
                asyncio.create_task(_disconnected(receive)),
                asyncio.create_task(self._streams.stopping.wait()),
                asyncio.create_task(self._slow.wait()),
                asyncio.create_task(self._refused()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await self._end(waits, connection)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end(self, waits: list[asyncio.Task[Any]], connection: ApiConnection) -> None:
        if self._slow.is_set():
            self._streams.meters.count("sandherd_gateway_streams_dropped_total")
            connection.abort()  # a response that is not read would otherwise wait for its client
        else:
            connection.extend(_CLOSING)
        await cancel_and_wait(waits)  # first: one of them starts the other
        await cancel_and_wait([self._watching] if self._watching else [])

    async def _pump(self, source: EventSource, epoch: str, start: Start, send: Send) -> None:
        kind = "ready" if start.resync is None else "resync"
        head = message(kind, cursor(epoch, start.after), json.dumps({"reason": start.resync}))
        await self._write(send, f"retry: {RETRY_MS}\n\n".encode() + head)
        async for frame in source.frames(start.after, self._streams.beat, self._joined):
            if frame is not None and source.is_live:
                self._measure(frame)
            await self._write(send, b": heartbeat\n\n" if frame is None else framed(frame, epoch))

    async def _write(self, send: Send, body: bytes) -> None:
        """Send it; if the client takes nothing, wait for the end of the stream."""
        try:
            async with asyncio.timeout(self._streams.stall):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:
            self._slow.set()
            await asyncio.Event().wait()

    def _measure(self, frame: Frame) -> None:
        delay = (datetime.now(UTC) - frame.stored_at).total_seconds()
        self._streams.meters.observe("sandherd_gateway_event_delay_seconds", max(0.0, delay))

    async def _refused(self) -> None:
        """Return when the token is no longer valid; beside what is sent, which may wait for the client."""
        with suppress(AccessError):
            while True:
                left = (self._caller.expires_at - datetime.now(UTC)).total_seconds()
                await asyncio.sleep(min(self._streams.beat, max(0.0, left)))
                await self._streams.tokens.check(self._caller)

    def _joined(self, queue: FrameQueue) -> None:
        async def watch() -> None:
            await queue.overflowed.wait()
            self._slow.set()

        self._watching = asyncio.create_task(watch())


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
