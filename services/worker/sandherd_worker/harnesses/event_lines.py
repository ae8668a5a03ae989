"""Events that an agent or its driver may emit, as JSON lines on a pipe. Invalid lines do no harm."""

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
"""A process in a sandbox that emits events through its worker: an agent's program, or the driver of an agent."""

PROGRAM: Final = "program"
"""The subtype of a tool call that only a worker may set: the call may take as long as its sandbox may live."""

_ACCEPTED: Final[Mapping[AgentProcess, frozenset[Emitter]]] = {
    "agent": frozenset({"agent"}),
    "driver": frozenset({"agent", "driver"}),
}
"""A driver emits what its agent may, and what it alone knows: where a turn begins and ends."""


def may_emit(event_type: str, process: AgentProcess) -> bool:
    """Whether a worker accepts this event from an agent or from a driver; never one of an unknown type."""
    model = EVENTS.get(event_type)
    return model is not None and model.emitted_by in _ACCEPTED[process]


LONGEST_LINE: Final = 1024 * 1024
READ_BYTES: Final = 64 * 1024
"""How much is read from the pipe at a time: what it holds."""
_DRIVERS: Final = "driver."
_TOGETHER: Final = 64
IN_FLIGHT: Final = 2 * LONGEST_LINE
"""Maximum size in bytes of the lines being written to disk at a time: once parsed, they take several times that."""


def _event(event_type: object, data: dict[str, Any], turn: int, process: AgentProcess) -> EventData:
    """The event with this type and data; without a turn it gets this one. Raises `ContractError` naming the field."""
    if not isinstance(event_type, str) or not may_emit(event_type, process):
        raise ContractError(Code.UNKNOWN_TYPE, f"{str(event_type)[:80]!r} can't come from the {process}", field="type")
    if data.get("event_subtype") == PROGRAM:
        raise ContractError(Code.INVALID_FIELD, f"{PROGRAM!r} can't come from the {process}", field="event_subtype")
    try:
        return EVENTS[event_type].model_validate({"turn": turn, **data, "artifacts": None})
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def _load(line: bytes) -> tuple[object, dict[str, Any]]:
    """The type and data in `{"type": "agent.…", "data": {…}}`. Raises `ContractError`."""
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


def complaint(error: ContractError, turn: int) -> AgentError:
    """The event published in place of an invalid line: names the field and the fault, never the value."""
    field = f" (field {error.problem.field})" if error.problem.field else ""
    return AgentError(error=f"invalid line on the events pipe: {error}{field}", phase="events", turn=turn)


class EventLines:
    """Reads the pipe to its end and publishes its events.

    A line whose type begins with `driver.` is not an event: it is passed to `heed` when all events before it are
    durable; `heed` may raise `ContractError`. Without a `heed` such a line is invalid, since the program is not a
    driver.
    """

    def __init__(
        self,
        publish: Callable[[EventData], Coroutine[Any, Any, object]],
        turn: Callable[[], int],
        heed: Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._publish = publish
        self._turn = turn
        self._heed = heed
        self._process: Final[AgentProcess] = "agent" if heed is None else "driver"
        self._publishing: deque[tuple[asyncio.Task[object], int]] = deque()
        self._in_flight = 0

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the pipe. Raises what `publish` raises."""
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
        self._in_flight -= size
        await task

    async def _read_all(self, reader: asyncio.StreamReader) -> None:
        splitter = LineSplitter(LONGEST_LINE)
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
            if self._heed is not None and isinstance(event_type, str) and event_type.startswith(_DRIVERS):
                await self._flush()
                await self._heed(event_type, data)
                return
            event = _event(event_type, data, self._turn(), self._process)
        except ContractError as error:
            event = complaint(error, self._turn())
        self._start_publishing(event, len(line))

    async def _wait_capacity(self, size: int) -> None:
        """Several events may be in flight to the disk, so that they share an fsync; count and size are limited."""
        while self._publishing and (len(self._publishing) >= _TOGETHER or self._in_flight + size > IN_FLIGHT):
            await self._wait_first()

    def _start_publishing(self, event: EventData, size: int) -> None:
        """Start to publish an event, in order."""
        self._publishing.append((asyncio.create_task(self._publish(event)), size))
        self._in_flight += size

    async def _refuse(self, line: OverlongLine) -> None:
        text = f"a line of {line.size} bytes; the limit is {LONGEST_LINE}"
        await self._wait_capacity(0)
        self._start_publishing(complaint(ContractError(Code.TOO_LARGE, text, field="line"), self._turn()), 0)
