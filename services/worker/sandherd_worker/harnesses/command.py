r"""The `command` harness: any program. It runs in the work tree; a message is a line on its standard input.

A program whose standard input was its task gets no messages. Its standard output and error are one stream. In a
message, backslash, line feed and carriage return are written as two characters each (`\\`, `\n`, `\r`), so that a
message is always one line. When the program ends, all processes that it started are ended, too.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any, Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, both, cancel_and_wait
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentTurnCompleted, AgentTurnStarted
from sandherd.contracts.events.tools import AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import new_name
from sandherd.process_signals import end
from sandherd_worker.harnesses.base import AgentEnd, EventSink, MessageRefusedError, UsageTotals
from sandherd_worker.harnesses.event_lines import EventLines
from sandherd_worker.harnesses.exit_reasons import MemoryKills, call_outcome, end_of_exit
from sandherd_worker.harnesses.program import Program, RunningProgram, launch
from sandherd_worker.harnesses.terminal_output import TAIL_CHARS, TerminalOutput
from sandherd_worker.processes import Reaper, descendants
from sandherd_worker.redaction import Redactor

_LEFTOVER_GRACE: Final = 0.5
"""How long processes that the program started may outlive it, in seconds."""
_TOOL: Final = "command"
_PREVIEW_CHARS: Final = 500


def one_line(content: str) -> bytes:
    """A message as one line of text, with escaped line breaks."""
    escaped = content.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return escaped.encode("utf-8", "replace") + b"\n"


class CommandHarness:
    """Runs one program, once. A `Harness`."""

    def __init__(
        self,
        program: Program,
        sink: EventSink,
        redactor: Redactor,
        reaper: Reaper,
        memory_kills: Callable[[], int | None],
        *,
        below: Callable[[], set[int]] = descendants,
    ) -> None:
        self._program = program
        self._sink = sink
        self._memory_kills = MemoryKills(memory_kills)
        self._reaper = reaper
        self._below = below
        self._output = TerminalOutput(redactor, sink.show)
        self._lines = EventLines(self._publish, lambda: 1)
        self._used = UsageTotals()
        self._call = new_name("call")
        self._stopped = False
        self._interrupted_by: set[str] = set()
        self._running: RunningProgram | None = None
        self._result: asyncio.Task[AgentEnd] | None = None

    async def start(self) -> None:
        """Start the program, and publish the beginning of its turn and its call."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        preview = self._program.prompt[:_PREVIEW_CHARS]
        await self._sink.publish(AgentTurnStarted(turn=1, prompt_preview=preview, origin="task"))
        await self._sink.publish(
            AgentToolUse(turn=1, tool=_TOOL, tool_use_id=self._call, input=self._input(), event_subtype="program")
        )
        try:
            self._running = await launch(self._program, self._reaper)
        except (OSError, ValueError) as error:
            self._result = loop.create_task(self._conclude(_not_started(self._program, error), began))
        else:
            self._result = loop.create_task(self._attend(self._running, began))

    async def ended(self) -> AgentEnd:
        """Wait until the program and all processes it started have ended, and its pipes are read to their ends."""
        if self._result is None:
            raise RuntimeError("the program was not started")
        return await asyncio.shield(self._result)

    async def wait_done(self) -> AgentEnd:
        """Wait as `ended` does: a program's task is done when it has ended."""
        return await self.ended()

    @property
    def follows_up(self) -> bool:
        """Always False: the program has ended."""
        return False

    async def inject(self, message: InboxMessage) -> None:
        """Write the message to the program's standard input; an `interrupt` first sends SIGINT, once per message."""
        running = self._running
        if running is None or running.exit.done():
            raise MessageRefusedError("the program has ended; it takes no follow-up")
        if message.message_type == "interrupt" and message.message not in self._interrupted_by:
            await self.interrupt(message.message)
        if self._program.stdin is not None:
            raise MessageRefusedError("the program's standard input was its task; it takes no messages")
        try:
            await running.write(one_line(message.content))
        except OSError:
            raise MessageRefusedError("the program has closed its standard input") from None

    async def interrupt(self, message: str | None = None, /) -> None:
        """Send SIGINT to the program's process group, once per message: many programs end at a second SIGINT."""
        if message is not None:
            self._interrupted_by.add(message)
        self._signal(SIGINT)

    async def stop(self, grace: float) -> None:
        """End the program by SIGTERM, and by SIGKILL after `grace` seconds; then end the processes that it started."""
        self._stopped = True
        self._signal(SIGTERM)
        if self._running is not None:
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(grace):
                    await asyncio.shield(self._running.exit)
        self._signal(SIGKILL)
        if self._result is not None:
            await asyncio.wait([self._result])

    async def _write_stdin(self, running: RunningProgram) -> None:
        if self._program.stdin is not None:
            await running.write_stdin(self._program.stdin.encode("utf-8", "replace"))

    def _signal(self, signal: Signals) -> None:
        if self._running is not None:
            self._running.signal(signal)

    async def _publish(self, data: EventData) -> None:
        self._used.count(data)
        await self._sink.publish(data)

    def _input(self) -> dict[str, object]:
        return {"argv": list(self._program.argv)}

    async def _attend(self, running: RunningProgram, began: float) -> AgentEnd:
        writing = asyncio.create_task(self._write_stdin(running))
        readers = asyncio.ensure_future(both(self._output.read(running.output), self._lines.read(running.events)))
        try:
            either: list[asyncio.Future[Any]] = [running.exit, readers]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if readers.done() and readers.exception() is not None:
                # The program's events and output can't be stored any more, so it may not continue.
                running.signal(SIGKILL)
            code = await running.exit
            await end(self._below, _LEFTOVER_GRACE)
            await readers
        finally:
            await cancel_and_wait([readers, writing], again_after=SHORT_CLEANUP_SECONDS)
            running.close()
        return await self._conclude(
            end_of_exit(code, stopped=self._stopped, memory_kills=self._memory_kills.new()), began
        )

    async def _conclude(self, ended: AgentEnd, began: float) -> AgentEnd:
        """Publish the program's result."""
        took = (asyncio.get_running_loop().time() - began) * 1000
        failed = ended.error_type is not None
        result = self._output.tail or ended.error
        await self._sink.publish(
            AgentToolResult(
                turn=1,
                tool_use_id=self._call,
                result=result,
                result_truncated=self._output.length > TAIL_CHARS,
                result_full_length=self._output.length,
                is_error=failed,
                outcome=call_outcome(ended),
                exit_code=ended.exit_code,
            )
        )
        response = {"exit_code": ended.exit_code, "signal": ended.signal}
        await self._sink.publish(
            AgentToolCompleted(
                turn=1,
                tool=_TOOL,
                tool_use_id=self._call,
                tool_input=self._input(),
                tool_response=response,
                duration_ms=took,
                outcome=call_outcome(ended),
                exit_code=ended.exit_code,
            )
        )
        await self._sink.publish(AgentTurnCompleted(turn=1, duration_ms=took, stop_reason=ended.error_type or "exit"))
        return replace(ended, final_output=self._output.tail, used=dict(self._used.totals))


def _not_started(program: Program, error: OSError | ValueError) -> AgentEnd:
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
    return AgentEnd(error_type="start", error=f"{program.argv[0]}: {os.strerror(number)}")
