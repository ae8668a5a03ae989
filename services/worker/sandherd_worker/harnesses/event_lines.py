"""Events that an agent says of itself: JSON lines on a pipe. Nothing written there can do harm."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pydantic import ValidationError

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.agent import AgentError
from sandherd.contracts.events.heard import PROGRAM, Teller, heard
from sandherd_worker.tasks import end_tasks

LONGEST_LINE: Final = 1024 * 1024
_DRIVERS: Final = "driver."
_TOGETHER: Final = 64
IN_FLIGHT: Final = 2 * LONGEST_LINE
"""How many bytes of lines may be on their way to the disk at a time: read, they take several times that."""


def read_line(line: bytes, turn: int, teller: Teller = "agent") -> EventData:
    """The event in `{"type": "agent.…", "data": {…}}`. Raises `ContractError` naming the field that is wrong.

    An event that doesn't say its turn gets this one.
    """
    return _event(*_load(line), turn, teller)


def _event(event_type: object, data: dict[str, Any], turn: int, teller: Teller) -> EventData:
    if not isinstance(event_type, str) or not heard(event_type, teller) or event_type not in EVENTS:
        raise ContractError(Code.UNKNOWN_TYPE, f"{str(event_type)[:80]!r} is not for the {teller} to say", field="type")
    if data.get("event_subtype") == PROGRAM:
        raise ContractError(Code.INVALID_FIELD, f"{PROGRAM!r} is not for the {teller} to say", field="event_subtype")
    try:
        return EVENTS[event_type].model_validate({"turn": turn, **data, "artifacts": None})
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def _load(line: bytes) -> tuple[object, dict[str, Any]]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(Code.INVALID_JSON, f"this line is no JSON: {type(error).__name__}") from None
    if not isinstance(document, dict):
        raise ContractError(Code.INVALID_JSON, "this line is no JSON object")
    event_type, data = document.get("type"), document.get("data", {})
    if not isinstance(data, dict):
        raise ContractError(Code.INVALID_FIELD, "data is no object", field="data")
    return event_type, data


def complaint(error: ContractError, turn: int) -> AgentError:
    """What is said in place of a line that can't be: the field and the fault, never the value."""
    field = f" (field {error.problem.field})" if error.problem.field else ""
    return AgentError(error=f"a line on the events pipe was not understood: {error}{field}", phase="events", turn=turn)


class EventLines:
    """Reads the pipe to its end and says what is on it.

    A line whose type begins with `driver.` is no event: `heed` is given it when all before it is safe, and may raise
    `ContractError`. Without a `heed` it is not understood, for the one that says it is no driver.
    """

    def __init__(
        self,
        say: Callable[[EventData], Coroutine[Any, Any, object]],
        turn: Callable[[], int],
        heed: Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._say = say
        self._turn = turn
        self._heed = heed
        self._teller: Final[Teller] = "agent" if heed is None else "driver"
        self._saying: deque[tuple[asyncio.Task[object], int]] = deque()
        self._in_flight = 0

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the pipe. Raises what `say` raises."""
        try:
            await self._read_all(reader)
            await self._settle()
        finally:
            await end_tasks([task for task, _ in self._saying])

    async def _settle(self) -> None:
        while self._saying:
            await self._said()

    async def _said(self) -> None:
        """Wait until the first of those under way is said."""
        task, size = self._saying.popleft()
        self._in_flight -= size
        await task

    async def _read_all(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as last:
                await self._take(last.partial)
                return
            except asyncio.LimitOverrunError as error:
                await self._skip(reader, error.consumed)
                continue
            await self._take(line)

    async def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        await self._make_room(len(line))
        try:
            event_type, data = _load(line)
            if self._heed is not None and isinstance(event_type, str) and event_type.startswith(_DRIVERS):
                await self._settle()
                await self._heed(event_type, data)
                return
            event = _event(event_type, data, self._turn(), self._teller)
        except ContractError as error:
            event = complaint(error, self._turn())
        self._say_soon(event, len(line))

    async def _make_room(self, size: int) -> None:
        """A few may be on their way to the disk together, so that they share an fsync; how many is a matter of size."""
        while self._saying and (len(self._saying) >= _TOGETHER or self._in_flight + size > IN_FLIGHT):
            await self._said()

    def _say_soon(self, event: EventData, size: int) -> None:
        """Say it in its turn."""
        self._saying.append((asyncio.create_task(self._say(event)), size))
        self._in_flight += size

    async def _skip(self, reader: asyncio.StreamReader, consumed: int) -> None:
        """Pass over a line that is too long, up to its end or the pipe's."""
        size = 0
        while True:
            size += len(await reader.readexactly(consumed))
            try:
                size += len(await reader.readuntil(b"\n"))
                break
            except asyncio.LimitOverrunError as error:
                consumed = error.consumed
            except asyncio.IncompleteReadError as last:
                size += len(last.partial)
                break
        fault = ContractError(Code.TOO_LARGE, f"a line of {size} bytes; the limit is {LONGEST_LINE}", field="line")
        await self._make_room(0)
        self._say_soon(complaint(fault, self._turn()), 0)
