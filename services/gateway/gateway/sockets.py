"""WebSockets: their authentication, their maximum number, and their end.

A WebSocket is authenticated like a request. A program that can't send the header sends its token in the first message,
within `SIGN_IN_SECONDS` seconds, and never in the URL. A page of another origin is always refused.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.access_tokens import AccessError, Caller, check_role, credential_of, unauthorized_error
from gateway.api_server import SOCKET
from gateway.event_stream import EventStreams
from gateway.live_feeds import EventSource
from gateway.request_guard import CALLER
from gateway.stream_cursors import cursor, start_of
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.client.errors import HerdError
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.records import AccessRole

SIGN_IN_SECONDS: Final = 10.0
"""If a request has no token, the first message must have one within this time, in seconds."""
MAX_SOCKETS_OF_PROJECT: Final = 200
"""Maximum number of sockets of one project at a replica."""
MAX_UNAUTHENTICATED: Final = 64
"""Maximum number of sockets at a replica that are not authenticated yet."""
CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_TRY_LATER: Final = 1013  # IANA: try again later
CLOSE_RESTART: Final = 1012  # IANA: service restart
_CLOSE_VIOLATION: Final = 1008  # RFC 6455: policy violation


class SocketEndError(Exception):
    """Ends a socket, with the code and the reason of its close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        # The reason may contain a name that the client sent; a close frame has to be valid Unicode.
        self.reason = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in reason[:120])


class SocketTable:
    """The number of open sockets of a replica: for each project, and of those that are not authenticated yet."""

    def __init__(self, max_of_project: int = MAX_SOCKETS_OF_PROJECT, max_pending: int = MAX_UNAUTHENTICATED) -> None:
        self._open: Counter[str | None] = Counter()
        self._max_of_project = max_of_project
        self._max_pending = max_pending

    @asynccontextmanager
    async def count(self, project: str | None) -> AsyncIterator[None]:
        """Count a socket within the context; `project` is None before it is authenticated.

        Raises `HerdError` (`busy`) if there are too many.
        """
        limit = self._max_pending if project is None else self._max_of_project
        if self._open[project] >= limit:
            state = "wait for their tokens" if project is None else "of the project are open at this replica"
            problem = Problem(
                code=Code.BUSY, message=f"{limit} sockets {state}", remedy="close some", retry_after_seconds=5
            )
            raise HerdError(problem)
        self._open[project] += 1
        try:
            yield
        finally:
            self._open[project] -= 1
            self._open += Counter()  # removes projects without sockets


class Socket:
    """An accepted socket of a caller.

    When its handler returns, the socket is closed. If the socket ends otherwise, the handler is cancelled.
    """

    def __init__(self, websocket: WebSocket, streams: EventStreams, caller: Caller) -> None:
        self.caller = caller
        self._websocket = websocket
        self._streams = streams

    async def send(self, message: "dict[str, Any] | bytes") -> None:
        """Send a document as text, or bytes. Raises `SocketEndError` if the client reads too slowly."""
        sending = (
            self._websocket.send_bytes(message)
            if isinstance(message, bytes)
            else self._websocket.send_text(json.dumps(message, ensure_ascii=False))
        )
        try:
            async with asyncio.timeout(self._streams.stall):
                await sending
        except TimeoutError:
            self._streams.meters.count("sandherd_gateway_streams_dropped_total")
            self._websocket.scope[SOCKET].abort()
            raise SocketEndError(CLOSE_TRY_LATER, "the client reads too slowly") from None

    async def receive(self) -> "dict[str, Any] | bytes":
        """The next message: a JSON object, or bytes. Raises `SocketEndError` or `WebSocketDisconnect`."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        if message.get("bytes") is not None:
            return bytes(message["bytes"])
        return document_of(message["text"])

    async def run(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run the parts of a handler until one of them ends, the token is no longer valid, or the service stops."""
        tasks = [asyncio.create_task(part) for part in (*parts, self._check_token(), self._wait_for_stop())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(tasks)

    async def _check_token(self) -> None:
        while True:
            remaining = (self.caller.expires_at - datetime.now(UTC)).total_seconds()
            await asyncio.sleep(min(self._streams.beat, max(0.0, remaining)))
            try:
                await self._streams.tokens.check(self.caller)
            except AccessError as error:
                raise SocketEndError(CLOSE_UNAUTHENTICATED, str(error)) from None

    async def _wait_for_stop(self) -> None:
        await self._streams.stopping.wait()
        raise SocketEndError(CLOSE_RESTART, "the gateway stops")


def document_of(text: str) -> dict[str, Any]:
    """The object in a text message. Raises `SocketEndError`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise SocketEndError(_CLOSE_VIOLATION, "a text message has to be a JSON object")
    return document


async def serve(
    websocket: WebSocket,
    streams: EventStreams,
    table: SocketTable,
    needed_role: AccessRole,
    handle: Callable[[Socket], Awaitable[None]],
) -> None:
    """Serve a socket: authenticate it, then let `handle` serve it until it ends.

    Raises `AccessError` or `HerdError` if it is refused before it is accepted.
    """
    caller: Caller | None = websocket.scope.get(CALLER)
    if caller is not None:
        check_role(caller, needed_role)
    try:
        if caller is None:
            async with table.count(None):
                await websocket.accept()
                caller = await _authenticate_first_message(websocket, streams)
                check_role(caller, needed_role)
            async with table.count(caller.project):
                await handle(Socket(websocket, streams, caller))
        else:
            async with table.count(caller.project):
                await websocket.accept()
                await handle(Socket(websocket, streams, caller))
        code, reason = 1000, ""
    except WebSocketDisconnect:
        return
    except SocketEndError as error:
        code, reason = error.code, error.reason
    except (AccessError, HerdError) as error:
        if websocket.client_state.name == "CONNECTING":  # it was not accepted
            raise
        code, reason = _code_of(error), error.problem.message[:120]
    except READ_ERRORS as error:
        code, reason = CLOSE_TRY_LATER, f"the broker does not respond: {type(error).__name__}"
    with suppress(RuntimeError, WebSocketDisconnect):  # the client has closed it meanwhile
        await websocket.close(code, reason)


async def _authenticate_first_message(websocket: WebSocket, streams: EventStreams) -> Caller:
    """The caller with the token in the first message, `{"type": "authenticate", "token": …}`. Raises `AccessError`."""
    try:
        async with asyncio.timeout(SIGN_IN_SECONDS):
            message = await websocket.receive()
    except TimeoutError:
        raise unauthorized_error("no token was received in time") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    document = document_of(message.get("text") or "")
    return await streams.tokens.authenticate(credential_of("token", str(document.get("token", ""))))


def _code_of(error: AccessError | HerdError) -> int:
    if isinstance(error, AccessError):
        return CLOSE_UNAUTHENTICATED if error.status == 401 else 4403
    return {Code.NOT_FOUND: 4404, Code.BUSY: CLOSE_TRY_LATER, Code.UNAVAILABLE: CLOSE_TRY_LATER}.get(
        error.problem.code, 4400
    )


class EventsHandler:
    """Sends the live events of a sandbox, each with its type and position, as in Server-Sent Events."""

    def __init__(self, streams: EventStreams, entity: str, after: str | None) -> None:
        self._streams = streams
        self._entity = entity
        self._after = after
        self._overflow = asyncio.Event()

    async def __call__(self, socket: Socket) -> None:
        """Send the events until the socket ends."""
        reader = self._streams.feeds.reader
        async with self._streams.feeds.of(socket.caller.project) as feed:
            source = EventSource(feed, reader, socket.caller.project, self._entity)
            await socket.run(self._send_events(socket, source), self._ignore_input(socket), self._wait_for_overflow())

    async def _send_events(self, socket: Socket, source: EventSource) -> None:
        state = await self._streams.feeds.reader.state()
        start = start_of(self._after, state)
        kind = "ready" if start.resync is None else "resync"
        position = cursor(state.epoch, start.after)
        await socket.send({"type": kind, "id": position, "data": {"reason": start.resync}})
        async for frame in source.frames(start.after, self._overflow.set):
            if frame is not None:
                document = json.loads(frame.document)
                await socket.send({"type": frame.type, "id": cursor(state.epoch, frame.sequence), "data": document})

    async def _wait_for_overflow(self) -> None:
        await self._overflow.wait()
        self._streams.meters.count("sandherd_gateway_streams_dropped_total")
        raise SocketEndError(CLOSE_TRY_LATER, "the client reads too slowly: connect again with the last position")

    async def _ignore_input(self, socket: Socket) -> None:
        """Read what the client sends, which is ignored, until it disconnects."""
        while True:
            await socket.receive()
