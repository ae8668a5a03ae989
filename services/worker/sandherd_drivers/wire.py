"""How a driver and its worker speak: JSON lines, commands on standard input, and what is said on the events pipe.

    async def main(wire: Wire) -> None:
        async for command in wire.commands():
            match command:
                case Begin(): …
                case Message(): …; wire.taken(command.message)
                case Interrupt(): …
                case Stop(): break

    run(main)

The methods that say something may be called from any thread, and return when the pipe has taken it. A SIGTERM means
stop, as the end of standard input does.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import Any, Final, Literal
from uuid import uuid4

from sandherd_drivers.commands import Begin, Command, Decide, Decision, Interrupt, Message, Stop, read_command
from sandherd_drivers.model_calls import Line, ModelCalls
from sandherd_drivers.shortening import fitting, shorten

__all__ = ["Begin", "Decision", "Interrupt", "Message", "Stop", "Wire", "run"]

EVENTS_VARIABLE: Final = "SANDHERD_EVENTS_FD"
_LONGEST_COMMAND: Final = 8 * 1024 * 1024
_LONGEST_NAME: Final = 256
_LEAVING: Final = "the agent is ending"
_UNASKED: Final = "nobody can be asked: it is too much to be shown"
_SHARE: Final = 0.5
"""How much of what is left of its grace one step of a driver's end may take."""

ErrorType = Literal["start", "signal", "internal", "stopped", "exit_status", "model_refused", "model_unavailable"]


class Wire:
    """Both directions. Make it with `open`, inside the loop that will read the commands."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands, self._events = commands, events
        self._lock, self._order = Lock(), Lock()
        self._calls: ModelCalls | None = None
        self._queue: asyncio.Queue[Command] = asyncio.Queue()
        self._asked: dict[str, asyncio.Future[Decision]] = {}
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Task[None] | None = None
        self._until: float | None = None
        self.leaving = asyncio.Event()
        """Set when it is to stop, even where that command is not read yet."""

    @classmethod
    async def open(cls) -> "Wire":
        """Take standard input and the events pipe for itself: nothing that the agent starts gets hold of them."""
        os.environ.pop("PYTHONPATH", None)
        events = os.dup(given := int(os.environ[EVENTS_VARIABLE]))
        os.close(given)
        # The name stays: by it the agent's processes are found when their worker is lost.
        os.environ[EVENTS_VARIABLE] = ""
        commands = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        wire = cls(commands, events)
        await wire._listen()
        return wire

    # --- what the worker wants

    async def commands(self) -> AsyncIterator[Command]:
        """Each command in order; the last is a `Stop`, also when the worker is gone. Answers to `ask` are not here."""
        while True:
            command = await self._queue.get()
            yield command
            if isinstance(command, Stop):
                return

    def within(self, most: float) -> float:
        """How long a step of the end may take, in seconds: `most`, or half of what is left of the grace for it all."""
        if self._until is None:
            return most
        return max(0.0, min(most, (self._until - self._loop.time()) * _SHARE))

    async def ask(self, tool: str, input: dict[str, Any], reason: str | None = None) -> Decision:
        """Ask whether the agent may use this tool, and wait for the answer. No one there to answer means no.

        Not to be awaited where the commands are read in turn: an interrupt would wait for the answer then.
        """
        if self.leaving.is_set():
            return Decision(granted=False, reason=_LEAVING)
        approval = f"apr-{uuid4().hex}"
        answer: asyncio.Future[Decision] = self._loop.create_future()
        self._asked[approval] = answer
        try:
            asked = self._say("driver.ask", approval_id=approval, tool=tool, input=input, reason=reason)
            if not asked or not 0 < len(tool) <= _LONGEST_NAME:
                return Decision(granted=False, reason=_UNASKED)
            return await answer
        finally:
            self._asked.pop(approval, None)

    def ask_from_thread(self, tool: str, input: dict[str, Any], reason: str | None = None) -> Decision:
        """`ask`, for a thread that isn't the loop's; it waits."""
        return asyncio.run_coroutine_threadsafe(self.ask(tool, input, reason), self._loop).result()

    def withdraw(self, reason: str = "the turn was stopped") -> None:
        """Answer all that was asked with no: for an interrupt."""
        for answer in list(self._asked.values()):
            _answer(answer, Decision(granted=False, reason=reason))

    # --- what is said

    def event(self, type: str, /, **data: Any) -> None:
        """Say an event: `agent.message`, with its fields. What is too long for one line is shortened."""
        calls = self._calls
        if calls is None:
            self._say(type, **data)
            return
        with self._order:
            self._say_all([*calls.before(type), (type, data), *calls.after(type, data)])

    def follow_model(self) -> None:
        """From now on calls of the model are said, too, as what is said shows them."""
        self._calls = ModelCalls()

    def ready(self, *, session_id: str | None = None, model: str | None = None, version: str | None = None) -> None:
        """The agent can take messages."""
        self._say("driver.ready", session_id=session_id, model=model, version=version)

    def taken(self, message: str) -> None:
        """The agent has this message."""
        self._say("driver.taken", message=message)

    def refused(self, message: str, reason: str) -> None:
        """The agent can't be given this message."""
        self._say("driver.refused", message=message, reason=reason)

    def turn(self, turn: int, state: Literal["running", "idle"]) -> None:
        """What the agent does now. Idle: it has nothing to do, and waits."""
        if state == "idle" and self._calls is not None:
            with self._order:
                self._say_all(self._calls.ended())
        self._say("driver.turn", turn=turn, state=state)

    def transcript(self, path: str | os.PathLike[str], session_id: str, *, keep: bool = True) -> None:
        """This file is the session as far as it has come; the worker keeps a copy, now or only if we are killed."""
        whole = os.path.abspath(path)  # noqa: PTH100  # pathlib leaves `..` in, or follows links
        self._say("driver.transcript", path=whole, session_id=session_id, keep=keep)

    def result(
        self,
        *,
        error_type: ErrorType | None = None,
        error: str = "",
        signal: int | None = None,
        turns: int = 1,
        final_output: str | None = None,
        stop_reason: str | None = None,
        session_id: str | None = None,
    ) -> None:
        """What came of the task; said once. No `error_type` means that it is done; `signal` is what ended the agent.

        It is time for it when the agent is idle and no message waits for it: a turn that was stopped for the sake of
        a message (`Interrupt`, then `Message`) is followed by that message's turn, and is no end.
        """
        self._say(
            "driver.result",
            error_type=error_type,
            error=error,
            signal=signal,
            turns=turns,
            final_output=final_output,
            stop_reason=stop_reason,
            session_id=session_id,
        )

    def _say_all(self, lines: Iterable[Line]) -> None:
        for type, data in lines:
            self._say(type, **data)

    def _say(self, type: str, /, **data: Any) -> bool:
        """Say it. False: it is too much for a line, and that is said in its place."""
        line = fitting(type, data)
        left = memoryview(line or shorten(type, data))
        with self._lock:
            while left:
                left = left[os.write(self._events, left) :]
        return line is not None

    # --- reading

    async def _listen(self) -> None:
        reader = asyncio.StreamReader(_LONGEST_COMMAND)
        pipe = os.fdopen(self._commands, "rb", buffering=0)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call_soon_threadsafe(self._stop, Stop()))
        self._reading = self._loop.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        # A line that is too long (`ValueError`) is nothing that the worker would write: the line is broken.
        with suppress(ValueError, OSError):
            while line := await reader.readline():
                self._heed(line)
        self._stop(Stop())

    def _heed(self, line: bytes) -> None:
        try:
            command = read_command(line)
        except (ValueError, TypeError, KeyError) as error:
            self._say("agent.error", error=f"a command was not understood: {type(error).__name__}", phase="driver")
            return
        if isinstance(command, Decide):
            _answer(self._asked.get(command.approval_id), Decision(granted=command.granted, reason=command.reason))
            return
        if isinstance(command, Stop):
            self._stop(command)
        else:
            self._queue.put_nowait(command)

    def _stop(self, command: Stop) -> None:
        """The first word that says how long it may take counts."""
        if command.grace is not None and self._until is None:
            self._until = self._loop.time() + command.grace
        self.leaving.set()
        self.withdraw(_LEAVING)
        self._queue.put_nowait(command)


def run(main: Callable[[Wire], Awaitable[None]]) -> None:
    """Run a driver: `main` until it returns. What it raises is told, and is the driver's failure."""

    async def whole() -> None:
        await main(await Wire.open())
        # It has ended in order: a SIGTERM that comes behind that is not what has ended it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    asyncio.run(whole())
    sys.stdout.flush()


def _answer(waiting: "asyncio.Future[Decision] | None", decision: Decision) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(decision)
