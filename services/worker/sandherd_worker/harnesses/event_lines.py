"""Reads the events that an agent or its driver emits as JSON lines on a pipe.

For an invalid line an event with the error is published, and reading continues.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Literal

from pydantic import ValidationError

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.agent import AgentError
from sandherd.contracts.events.base import Emitter
from sandherd_worker.harnesses.line_splitter import LineSplitter, OverlongLine

AgentProcess = Literal["agent", "driver"]
"""The process that writes the lines: an agent's program, or the driver of an agent."""

PROGRAM: Final = "program"
"""The subtype of a tool call that only a worker may set, because such a call has no time limit but the sandbox's."""

_ACCEPTED: Final[Mapping[AgentProcess, frozenset[Emitter]]] = {
    "agent": frozenset({"agent"}),
    "driver": frozenset({"agent", "driver"}),
}
"""The emitters of the event types that a worker accepts from each process. A driver may also emit the events that only
it knows: the beginnings and ends of turns."""


def may_emit(event_type: str, process: AgentProcess) -> bool:
    """Whether a worker accepts events of this type from this process; False for an unknown type."""
    model = EVENTS.get(event_type)
    return model is not None and model.emitted_by in _ACCEPTED[process]


MAX_LINE_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 64 * 1024
"""The number of bytes that are read from the pipe at a time: its capacity."""
_DRIVER_PREFIX: Final = "driver."
_MAX_EVENTS_IN_FLIGHT: Final = 64
MAX_BYTES_IN_FLIGHT: Final = 2 * MAX_LINE_BYTES
"""Maximum size of the lines whose events are being written to disk. A parsed event needs several times that memory."""


def _event(event_type: object, data: dict[str, Any], turn: int, process: AgentProcess) -> EventData:
    """The event with this type and data. Raises `ContractError` naming the invalid field.

    `turn`: the turn of the event if its data does not contain one.
    """
    if not isinstance(event_type, str) or not may_emit(event_type, process):
        raise ContractError(Code.UNKNOWN_TYPE, f"{str(event_type)[:80]!r} can't come from the {process}", field="type")
    if data.get("event_subtype") == PROGRAM:
        raise ContractError(Code.INVALID_FIELD, f"{PROGRAM!r} can't come from the {process}", field="event_subtype")
    try:
        # Only the worker stores large values as artifacts, so only it may refer to one.
        return EVENTS[event_type].model_validate({"turn": turn, **data, "artifacts": None})
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def _load(line: bytes) -> tuple[object, dict[str, Any]]:
    """The type and the data in a line such as `{"type": "agent.…", "data": {…}}`. Raises `ContractError`."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(Code.INVALID_JSON, f"this line is not JSON: {type(error).__name__}") from None
    if not isinstance(document, dict):
        raise ContractError(Code.INVALID_JSON, "this line is not a JSON object")
    event_type, data = document.get("type"), document.get("data", {})
    if not isinstance(data, dict):
        raise ContractError(Code.INVALID_FIELD, "data is not an object", field="data")
    return event_type, data


def invalid_line_event(error: ContractError, turn: int) -> AgentError:
    """The event published in place of an invalid line. It names the field and the error, but never the value."""
    field = f" (field {error.problem.field})" if error.problem.field else ""
    return AgentError(error=f"invalid line on the events pipe: {error}{field}", phase="events", turn=turn)


class EventLines:
    """Reads the pipe to its end and publishes its events.

    A line whose type begins with `driver.` is not an event but a message to the worker. It is passed to
    `handle_driver_message` when all events before it are durable; that function may raise `ContractError`. If it is
    None, the lines come from an agent, and such a line is invalid.
    """

    def __init__(
        self,
        publish: Callable[[EventData], Coroutine[Any, Any, object]],
        turn: Callable[[], int],
        handle_driver_message: Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._publish = publish
        self._turn = turn
        self._handle_driver_message = handle_driver_message
        self._process: Final[AgentProcess] = "agent" if handle_driver_message is None else "driver"
        self._publishing: deque[tuple[asyncio.Task[object], int]] = deque()
        self._bytes_in_flight = 0

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the pipe. Raises the exceptions of `publish`."""
        try:
            await self._read_all(reader)
            await self._flush()
        finally:
            await cancel_and_wait([task for task, _ in self._publishing], again_after=SHORT_CLEANUP_SECONDS)

    async def _flush(self) -> None:
        while self._publishing:
            await self._wait_first()

    async def _wait_first(self) -> None:
        """Wait until the first event in flight is published."""
        task, size = self._publishing.popleft()
        self._bytes_in_flight -= size
        await task

    async def _read_all(self, reader: asyncio.StreamReader) -> None:
        splitter = LineSplitter(MAX_LINE_BYTES)
        while data := await reader.read(READ_BYTES):
            for line in splitter.feed(data):
                await self._handle(line)
        await self._handle(splitter.rest())

    async def _handle(self, line: bytes | OverlongLine) -> None:
        if isinstance(line, OverlongLine):
            await self._refuse(line)
            return
        if not line or line.isspace():
            return
        await self._wait_capacity(len(line))
        try:
            event_type, data = _load(line)
            if self._handle_driver_message and isinstance(event_type, str) and event_type.startswith(_DRIVER_PREFIX):
                await self._flush()
                await self._handle_driver_message(event_type, data)
                return
            event = _event(event_type, data, self._turn(), self._process)
        except ContractError as error:
            event = invalid_line_event(error, self._turn())
        self._start_publishing(event, len(line))

    async def _wait_capacity(self, size: int) -> None:
        """Wait until a line of this size may be published. Several are published at once, so that they share a sync."""
        while self._publishing and (
            len(self._publishing) >= _MAX_EVENTS_IN_FLIGHT or self._bytes_in_flight + size > MAX_BYTES_IN_FLIGHT
        ):
            await self._wait_first()

    def _start_publishing(self, event: EventData, size: int) -> None:
        """Start to publish an event. The order of the calls is the order of the events."""
        self._publishing.append((asyncio.create_task(self._publish(event)), size))
        self._bytes_in_flight += size

    async def _refuse(self, line: OverlongLine) -> None:
        text = f"a line of {line.size} bytes; the limit is {MAX_LINE_BYTES}"
        await self._wait_capacity(0)
        self._start_publishing(invalid_line_event(ContractError(Code.TOO_LARGE, text, field="line"), self._turn()), 0)
