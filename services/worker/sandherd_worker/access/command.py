"""One command that a user runs in the sandbox, from its start until none of its processes is left."""

import asyncio
import os
from contextlib import suppress
from datetime import datetime
from signal import Signals
from typing import Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests.access import CommandState, ExecFields, ExecState
from sandherd.contracts.requests.terminal import ExecInputFields
from sandherd.process_signals import end, send
from sandherd_worker.access.command_launch import CommandLaunch, LaunchedCommand, launch
from sandherd_worker.access.command_log import CommandLog, Stream
from sandherd_worker.access.command_terminal import CommandTerminal
from sandherd_worker.emitter import now
from sandherd_worker.harnesses.terminal_output import OutputAllowance, OutputRate, TerminalOutput
from sandherd_worker.processes import ProcessOwnership, Reaper
from sandherd_worker.redaction import Redactor

_LEFTOVER_GRACE: Final = 0.5
"""How long the command's child processes may outlive it, in seconds."""
_TIMEOUT_GRACE: Final = 2.0
"""How long a command that timed out has between SIGTERM and SIGKILL, in seconds."""
_LAST_OUTPUT_SECONDS: Final = 2.0
"""How long pipes are read after all processes of the command have ended, in seconds.

A process that the worker does not find may have them open for longer.
"""
TERMINAL_IDLE_SECONDS: Final = 60.0
"""How long a command with a terminal runs without a request about it, in seconds. Without one, its client has
probably ended or lost the connection.
"""
_MAX_OUTPUT_RATE: Final = 256.0 * 1024 * 1024


class UserCommand:
    """A command, which runs once. Its output is stored without the secrets that the worker knows."""

    def __init__(self, request: ExecFields, log: CommandLog, ownership: ProcessOwnership) -> None:
        self.request = request
        self.log = log
        self.state: CommandState = "running"
        self.error: str | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.started_at: datetime = now()
        self.ended_at: datetime | None = None
        self._ownership = ownership
        self._timed_out = False
        self._terminal: CommandTerminal | None = None
        self._requested_at = asyncio.get_running_loop().time()
        self._launched = False
        self._pending_signals: list[Signals] = []
        """Signals that were requested before the process was started."""
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the command and all processes that it started have ended."""
        return self.ended_at is not None

    def status(self, offset: int) -> ExecState:
        """The current state of the command, with its output from `offset` on. Raises `OSError`."""
        output = self.log.read(offset)
        reached = offset + sum(len(piece.data) for piece in output)
        return ExecState(
            exec=self.request.exec,
            state=self.state,
            exit_code=self.exit_code,
            signal=self.signal,
            error=self.error,
            output=output,
            next_offset=reached,
            complete=self.ended and reached >= self.log.size,
            dropped_bytes=self.log.dropped,
            started_at=self.started_at,
            ended_at=self.ended_at,
        )

    async def wait(self, offset: int, seconds: float) -> None:
        """Wait until there is output after `offset`, or the command has ended, for at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ended and self.log.size <= offset:
                    await self._changed.wait()

    async def run(self, command: CommandLaunch, reaper: Reaper, redactor: Redactor) -> None:
        """Run the command until it ends. An error of the command sets its state, and is not raised."""
        try:
            launched = await launch(command, reaper)
        except (OSError, ValueError) as error:
            self._end("failed", error=_start_error(command, error))
            return
        self._ownership.enter(self.request.exec, launched.leader)
        self._launched, self._terminal = True, launched.terminal
        for signal in self._pending_signals:
            self.send(signal)
        try:
            await self._watch(launched, redactor)
        finally:
            self._terminal = None
            launched.close()
            self._ownership.remove(self.request.exec)
        code = launched.exit.result()
        self._end(_end_state(code, late=self._timed_out), code=code)

    def requested(self) -> None:
        """Record that a client has sent a request about the command."""
        self._requested_at = asyncio.get_running_loop().time()

    def accept(self, request: ExecInputFields) -> int:
        """Write input to the command's terminal, and resize it; returns how many bytes were accepted so far.

        Raises `ContractError` if it has no terminal, or if input before this offset is missing.
        """
        terminal = self._terminal
        if terminal is None:
            raise _terminal_error(self)
        if request.offset > terminal.accepted:
            raise ContractError(
                Code.CONFLICT, f"offset: only {terminal.accepted} bytes were accepted so far", field="offset"
            )
        if request.size is not None:
            terminal.resize(request.size)
        return terminal.write(request.data, request.offset)

    def send(self, signal: Signals) -> None:
        """Send a signal to all processes of the command, once it is started."""
        if not self._launched:
            self._pending_signals.append(signal)
        elif not self.ended:
            send(self._process_ids(), signal)

    async def stop(self, grace: float) -> None:
        """End all processes of the command, by SIGKILL after `grace` seconds."""
        await end(self._process_ids, grace)

    def fail(self, error: str) -> None:
        """End the command as failed, before it has started."""
        self._end("failed", error=error)

    def _process_ids(self) -> set[int]:
        return self._ownership.of(self.request.exec)

    async def _watch(self, launched: LaunchedCommand, redactor: Redactor) -> None:
        reading = asyncio.gather(
            self._reader("stdout", redactor).read(launched.stdout),
            self._reader("stderr", redactor).read(launched.stderr),
        )
        watching = [asyncio.create_task(self._end_at_timeout())]
        if launched.terminal is not None:
            watching.append(asyncio.create_task(self._end_without_client()))
        try:
            await launched.exit
            await self.stop(_LEFTOVER_GRACE)
            await asyncio.wait([reading], timeout=_LAST_OUTPUT_SECONDS)
        finally:
            await cancel_and_wait([*watching, reading], again_after=SHORT_CLEANUP_SECONDS)

    def _reader(self, stream: Stream, redactor: Redactor) -> TerminalOutput:
        async def store(text: str) -> None:
            self.log.add(stream, text.encode("utf-8", "surrogateescape"))
            self._notify()

        return TerminalOutput(
            redactor,
            store,
            OutputRate(_MAX_OUTPUT_RATE, _MAX_OUTPUT_RATE),
            together=0.0,
            allowance=OutputAllowance.unbounded(),
        )

    async def _end_at_timeout(self) -> None:
        await asyncio.sleep(self.request.timeout_seconds)
        self._timed_out = True
        await self.stop(_TIMEOUT_GRACE)

    async def _end_without_client(self) -> None:
        now = asyncio.get_running_loop().time
        while (left := self._requested_at + TERMINAL_IDLE_SECONDS - now()) > 0:  # noqa: ASYNC110  # until a time that requests put off
            await asyncio.sleep(left)
        self.error = f"its client has sent no request for {TERMINAL_IDLE_SECONDS:.0f} s"
        await self.stop(_TIMEOUT_GRACE)

    def _end(self, state: CommandState, *, code: int | None = None, error: str | None = None) -> None:
        self.state, self.error = state, error or self.error
        self.exit_code = code if code is not None and code >= 0 else None
        self.signal = -code if code is not None and code < 0 else None
        self.ended_at = now()
        self.log.end()
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _end_state(code: int, *, late: bool) -> CommandState:
    if late:
        return "timed_out"
    return "killed" if code < 0 else "exited"


def _terminal_error(command: UserCommand) -> ContractError:
    name = command.request.exec
    if command.ended:
        return ContractError(Code.CONFLICT, f"{name} has ended", field="exec")
    if command.request.terminal is None:
        return ContractError(Code.CONFLICT, f"{name} has no terminal", field="exec", remedy="start it with one")
    return ContractError(Code.UNAVAILABLE, f"{name} is just starting", field="exec", remedy="retry")


def _start_error(command: CommandLaunch, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno:
        return f"{command.argv[0]}: {os.strerror(error.errno)}"
    return f"{command.argv[0]}: {error}"
