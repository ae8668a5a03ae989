"""The protocol between a driver and its worker: JSON lines; commands on standard input, events on the events pipe.

    async def main(wire: Wire) -> None:
        async for command in wire.commands():
            match command:
                case Begin(): …
                case Message(): …; wire.report_taken(command.message)
                case Interrupt(): …
                case Stop(): break

    run(main)

The methods that publish may be called from any thread, and return when the pipe has taken the line. A SIGTERM means
stop, and so does the end of standard input.
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
from sandherd_drivers.line_encoder import encode_if_it_fits, encode_line
from sandherd_drivers.model_calls import EventLine, ModelCalls

__all__ = ["Begin", "Decision", "Interrupt", "Message", "Stop", "Wire", "run"]

EVENTS_VARIABLE: Final = "SANDHERD_EVENTS_FD"
_MAX_COMMAND_BYTES: Final = 8 * 1024 * 1024
_MAX_TOOL_NAME_LENGTH: Final = 256
_AGENT_ENDING: Final = "the agent is ending"
_REQUEST_TOO_LARGE: Final = "the request is too large to be shown to a user"
_STEP_SHARE: Final = 0.5
"""The share of the remaining grace period that one step of a driver's end may take."""

ErrorType = Literal["start", "signal", "internal", "stopped", "exit_status", "model_refused", "model_unavailable"]


class Wire:
    """Both directions of the protocol. Create it with `open`, inside the loop that will read the commands."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands, self._events = commands, events
        self._write_lock, self._order_lock = Lock(), Lock()
        """`_order_lock` keeps the lines of an event and of the model calls derived from it together."""
        self._calls: ModelCalls | None = None
        self._queue: asyncio.Queue[Command] = asyncio.Queue()
        self._pending_approvals: dict[str, asyncio.Future[Decision]] = {}
        self._loop = asyncio.get_running_loop()
        self._reader_task: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self.stopping = asyncio.Event()
        """Set when the driver must stop, even if that command is not read yet."""

    @classmethod
    async def open(cls) -> "Wire":
        """Take over standard input and the events pipe, so that processes of the agent do not inherit them."""
        os.environ.pop("PYTHONPATH", None)
        events = os.dup(descriptor := int(os.environ[EVENTS_VARIABLE]))
        os.close(descriptor)
        # The variable stays, because the agent's processes are found by its name if their worker is lost.
        os.environ[EVENTS_VARIABLE] = ""
        commands = os.dup(0)
        null_device = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_device, 0)
        os.close(null_device)
        wire = cls(commands, events)
        await wire._start_reader()
        return wire

    # --- commands

    async def commands(self) -> AsyncIterator[Command]:
        """Each command in order, except decisions; the last is a `Stop`, even when the worker is lost."""
        while True:
            command = await self._queue.get()
            yield command
            if isinstance(command, Stop):
                return

    def shutdown_timeout(self, maximum: float) -> float:
        """Seconds that a step of the shutdown may take: at most `maximum`, and half of the remaining grace period."""
        if self._deadline is None:
            return maximum
        return max(0.0, min(maximum, (self._deadline - self._loop.time()) * _STEP_SHARE))

    async def request_approval(self, tool: str, input: dict[str, Any], reason: str | None = None) -> Decision:
        """Request approval of a tool, and wait for the decision. A request that is too large for a user is denied.

        Do not await it in the loop that reads the commands, because an interrupt would wait for the decision.
        """
        if self.stopping.is_set():
            return Decision(granted=False, reason=_AGENT_ENDING, withdrawn=True)
        approval_id = f"apr-{uuid4().hex}"
        decision: asyncio.Future[Decision] = self._loop.create_future()
        self._pending_approvals[approval_id] = decision
        try:
            is_written = self._write_line("driver.ask", approval_id=approval_id, tool=tool, input=input, reason=reason)
            if not is_written or not 0 < len(tool) <= _MAX_TOOL_NAME_LENGTH:
                return Decision(granted=False, reason=_REQUEST_TOO_LARGE)
            return await decision
        finally:
            self._pending_approvals.pop(approval_id, None)

    def deny_pending_approvals(self, reason: str = "the turn was stopped") -> None:
        """Deny all pending approval requests: for an interrupt."""
        for decision in list(self._pending_approvals.values()):
            _resolve(decision, Decision(granted=False, reason=reason, withdrawn=True))

    # --- publishing

    def publish_event(self, type: str, /, **data: Any) -> None:
        """Publish an event of a type such as `agent.message`, with its fields. Long texts are cut to fit a line."""
        calls = self._calls
        if calls is None:
            self._write_line(type, **data)
            return
        with self._order_lock:
            self._write_lines([*calls.events_before(type), (type, data), *calls.events_after(type, data)])

    def derive_model_calls(self) -> None:
        """From now on, also publish the model calls that are derived from the events."""
        self._calls = ModelCalls()

    def report_ready(
        self, *, session_id: str | None = None, model: str | None = None, version: str | None = None
    ) -> None:
        """Report that the agent can take messages."""
        self._write_line("driver.ready", session_id=session_id, model=model, version=version)

    def report_taken(self, message: str) -> None:
        """Report that the agent has taken this message."""
        self._write_line("driver.taken", message=message)

    def report_refused(self, message: str, reason: str) -> None:
        """Report that the agent can't receive this message."""
        self._write_line("driver.refused", message=message, reason=reason)

    def report_turn(self, turn: int, state: Literal["running", "idle"]) -> None:
        """Report the state of the turn. `idle`: the agent has nothing to do, and waits."""
        if state == "idle" and self._calls is not None:
            with self._order_lock:
                self._write_lines(self._calls.end_call())
        self._write_line("driver.turn", turn=turn, state=state)

    def report_transcript(self, path: str | os.PathLike[str], session_id: str, *, keep: bool = True) -> None:
        """Report the file of the session. The worker stores it now; without `keep`, only if the driver is killed."""
        absolute_path = os.path.abspath(path)  # noqa: PTH100  # pathlib leaves `..` in, or follows links
        self._write_line("driver.transcript", path=absolute_path, session_id=session_id, keep=keep)

    def report_result(
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
        """Report the task's result, once. Without `error_type` the task is completed. `signal` has ended the agent.

        Send it when the agent is idle and no message waits: a turn that was stopped for a message (`Interrupt`, then
        `Message`) is followed by that message's turn, and is not the end.
        """
        self._write_line(
            "driver.result",
            error_type=error_type,
            error=error,
            signal=signal,
            turns=turns,
            final_output=final_output,
            stop_reason=stop_reason,
            session_id=session_id,
        )

    def _write_lines(self, lines: Iterable[EventLine]) -> None:
        for type, data in lines:
            self._write_line(type, **data)

    def _write_line(self, type: str, /, **data: Any) -> bool:
        """Write a line. False: it is too large, and an error was written in its place."""
        line = encode_if_it_fits(type, data)
        remaining = memoryview(line or encode_line(type, data))
        with self._write_lock:
            while remaining:
                remaining = remaining[os.write(self._events, remaining) :]
        return line is not None

    # --- reading

    async def _start_reader(self) -> None:
        reader = asyncio.StreamReader(_MAX_COMMAND_BYTES)
        pipe = os.fdopen(self._commands, "rb", buffering=0)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call_soon_threadsafe(self._stop, Stop()))
        self._reader_task = self._loop.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        # The worker never writes a line that is too long (`ValueError`): the connection is broken.
        with suppress(ValueError, OSError):
            while line := await reader.readline():
                self._handle_line(line)
        self._stop(Stop())

    def _handle_line(self, line: bytes) -> None:
        try:
            command = read_command(line)
        except (ValueError, TypeError, KeyError) as error:
            self._write_line("agent.error", error=f"invalid command: {type(error).__name__}", phase="driver")
            return
        if isinstance(command, Decide):
            pending = self._pending_approvals.get(command.approval_id)
            _resolve(pending, Decision(granted=command.granted, reason=command.reason, by_user=command.by_user))
            return
        if isinstance(command, Stop):
            self._stop(command)
        else:
            self._queue.put_nowait(command)

    def _stop(self, command: Stop) -> None:
        """Request the driver's stop. The first command with a grace period sets the deadline."""
        if command.grace is not None and self._deadline is None:
            self._deadline = self._loop.time() + command.grace
        self.stopping.set()
        self.deny_pending_approvals(_AGENT_ENDING)
        self._queue.put_nowait(command)


def run(main: Callable[[Wire], Awaitable[None]]) -> None:
    """Run a driver: `main` until it returns. An exception is printed, and is the driver's failure."""

    async def run_main() -> None:
        await main(await Wire.open())
        # The driver has ended normally: a later SIGTERM must not count as the cause of the end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    asyncio.run(run_main())
    sys.stdout.flush()


def _resolve(pending: "asyncio.Future[Decision] | None", decision: Decision) -> None:
    if pending is not None and not pending.done():
        pending.set_result(decision)
