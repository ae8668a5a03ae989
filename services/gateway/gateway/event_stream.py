"""The response with Server-Sent Events: frames, heartbeats, and its end."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response

from gateway.access_tokens import AccessError, Caller, TokenReader
from gateway.api_server import CONNECTION, ApiConnection
from gateway.live_feeds import EventSource, LiveFeeds
from gateway.problems import problem_of, problem_response
from gateway.request_guard import Receive, Scope, Send
from gateway.stream_cursors import StreamStart, cursor, start_of
from gateway.stream_reader import EventFrame
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.errors import Code
from sandherd.telemetry.meters import Meters

HEARTBEAT: Final = 15.0
"""Seconds between two comments, so that no proxy closes a connection on which there are no events."""
RETRY_MS: Final = 1000
"""Milliseconds after which a client connects again, as the stream states."""
STALL: Final = 30.0
"""Seconds after which a client that does not read is disconnected, even while stored events are sent."""
_CLOSING_SECONDS: Final = 5.0
"""Maximum seconds for the end of a stream, as a client that does not read would otherwise keep the connection."""
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


def message(event: str, identifier: str, data: str) -> bytes:
    """One message of Server-Sent Events. `data` must not contain a line break."""
    return f"event: {event}\nid: {identifier}\ndata: {data}\n\n".encode()


def message_of_frame(frame: EventFrame, epoch: str) -> bytes:
    """The message of an event."""
    return message(frame.type, cursor(epoch, frame.sequence), frame.document)


class EventStreams:
    """The common data of all streams of events of a replica. They end when `stopping` is set."""

    def __init__(
        self, feeds: LiveFeeds, tokens: TokenReader, meters: Meters, beat: float = HEARTBEAT, stall: float = STALL
    ) -> None:
        self.feeds = feeds
        self.tokens = tokens
        self.meters = meters
        self.beat = beat  # as `HEARTBEAT`, in seconds
        self.stall = stall  # as `STALL`, in seconds
        self.stopping = asyncio.Event()
        self.responses: set[EventStreamResponse] = set()

    def open(self, caller: Caller, entity: str | None, after: str | None) -> "EventStreamResponse":
        """A response with the events after a position, of the caller's project or of one of its tasks and sandboxes."""
        return EventStreamResponse(self, caller, entity, after)

    def stop(self) -> None:
        """End all streams."""
        self.stopping.set()
        for response in self.responses:
            response.end()


class EventStreamResponse(Response):
    """A response that continues until the client disconnects, the token is not valid any more, or the service stops.

    A replica may have thousands of these responses, so each has only two tasks and one timer.
    """

    def __init__(self, streams: EventStreams, caller: Caller, entity: str | None, after: str | None) -> None:
        super().__init__()
        self._streams = streams
        self._caller = caller
        self._entity = entity
        self._after = after
        self._ended = asyncio.Event()
        self._is_slow = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or a problem if the broker is unavailable when it begins."""
        self._streams.responses.add(self)
        if self._streams.stopping.is_set():
            self.end()
        try:
            await self._serve(scope[CONNECTION], send)
        except READ_ERRORS as error:
            problem = problem_of(
                Code.UNAVAILABLE, f"the stream of events does not respond: {error!r}", remedy="retry in a moment"
            )
            await problem_response(problem)(scope, receive, send)
        finally:
            self._streams.responses.discard(self)

    def end(self) -> None:
        """End the stream."""
        self._ended.set()

    async def _serve(self, connection: ApiConnection, send: Send) -> None:
        async with self._streams.feeds.of(self._caller.project) as feed:
            source = EventSource(feed, self._streams.feeds.reader, self._caller.project, self._entity)
            state = await self._streams.feeds.reader.state()
            start = start_of(self._after, state)
            connection.stay_open(self.end)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            sending = asyncio.create_task(self._send_events(source, state.epoch, start, connection, send))
            sending.add_done_callback(lambda _: self.end())
            try:
                await self._watch(source)
            finally:
                self._close(connection)
                await cancel_and_wait([sending])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _close(self, connection: ApiConnection) -> None:
        if self._is_slow:
            self._streams.meters.count("sandherd_gateway_streams_dropped_total")
            connection.abort()  # a response that is not read would otherwise wait for its client
        else:
            connection.extend(_CLOSING_SECONDS)

    async def _watch(self, source: EventSource) -> None:
        """Return when the stream ends or the token is not valid any more. Until then, request heartbeats.

        This runs separately from the sending of events, which may wait for the client.
        """
        while not await self._ends_within(self._seconds_to_heartbeat()):
            source.beat()
            with suppress(AccessError):
                await run_until_first(self._ended.wait(), self._streams.tokens.check(self._caller))
                continue
            return

    def _seconds_to_heartbeat(self) -> float:
        """Seconds until the next heartbeat and the next check of the token."""
        remaining = (self._caller.expires_at - datetime.now(UTC)).total_seconds()
        return min(self._streams.beat, max(0.0, remaining))

    async def _ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self._ended.is_set()

    async def _send_events(
        self, source: EventSource, epoch: str, start: StreamStart, connection: ApiConnection, send: Send
    ) -> None:
        kind = "ready" if start.resync is None else "resync"
        first_message = message(kind, cursor(epoch, start.after), json.dumps({"reason": start.resync}))
        await self._write(connection, send, f"retry: {RETRY_MS}\n\n".encode() + first_message)
        async for frame in source.frames(start.after, self._end_slow):
            if frame is not None and source.is_live:
                self._measure(frame)
            await self._write(connection, send, b": heartbeat\n\n" if frame is None else message_of_frame(frame, epoch))

    async def _write(self, connection: ApiConnection, send: Send, body: bytes) -> None:
        """Send a part of the body. If the client does not read it, end the stream, and wait for the end."""
        body_part = {"type": "http.response.body", "body": body, "more_body": True}
        if not connection.is_full:  # the usual case, in which nothing waits: a timer for each event would be expensive
            await send(body_part)
            return
        try:
            async with asyncio.timeout(self._streams.stall):
                await send(body_part)
        except TimeoutError:
            self._end_slow()
            await asyncio.Event().wait()

    def _end_slow(self) -> None:
        self._is_slow = True
        self.end()

    def _measure(self, frame: EventFrame) -> None:
        delay = (datetime.now(UTC) - frame.stored_at).total_seconds()
        self._streams.meters.observe("sandherd_gateway_event_delay_seconds", max(0.0, delay))
