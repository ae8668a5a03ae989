r"""The `command` harness: any program. It runs in the work tree; a message is a line on its standard input.

There are none for a program whose standard input was its task. Its standard output and error are one stream. In a
message, backslash, line feed and carriage return are written as two characters each (`\\`, `\n`, `\r`), so that a
message is always one line. When the program ends, everything that it started ends with it.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any, Final

from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentTurnCompleted, AgentTurnStarted
from sandherd.contracts.events.tools import AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.contracts.names import new_name
from sandherd_worker.harnesses.base import CannotTakeError, Ended, Voice
from sandherd_worker.harnesses.event_lines import EventLines
from sandherd_worker.harnesses.judging import MemoryKills, judge
from sandherd_worker.harnesses.output import TAIL, Output
from sandherd_worker.harnesses.program import Program, Running, launch
from sandherd_worker.harnesses.usage import Used
from sandherd_worker.processes import Reaper, descendants, end
from sandherd_worker.redaction import Redactor
from sandherd_worker.tasks import end_tasks

_LEFTOVER_GRACE: Final = 0.5
"""How long what the program started may go on after it, in seconds."""
_TOOL: Final = "command"
_PREVIEW: Final = 500


def one_line(content: str) -> bytes:
    """A message as one line of text."""
    escaped = content.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return escaped.encode("utf-8", "replace") + b"\n"


class CommandHarness:
    """Runs one program, once. A `Harness`."""

    def __init__(
        self,
        program: Program,
        voice: Voice,
        redactor: Redactor,
        reaper: Reaper,
        memory_kills: Callable[[], int | None],
        *,
        below: Callable[[], set[int]] = descendants,
    ) -> None:
        self._program = program
        self._voice = voice
        self._memory_kills = MemoryKills(memory_kills)
        self._reaper = reaper
        self._below = below
        self._output = Output(redactor, voice.show)
        self._lines = EventLines(self._say, lambda: 1)
        self._used = Used()
        self._call = new_name("call")
        self._stopped = False
        self._stopped_for: set[str] = set()
        self._running: Running | None = None
        self._result: asyncio.Task[Ended] | None = None

    async def start(self) -> None:
        """Start the program, and say so."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._voice.say(AgentTurnStarted(turn=1, prompt_preview=self._program.said[:_PREVIEW]))
        await self._voice.say(
            AgentToolUse(turn=1, tool=_TOOL, tool_use_id=self._call, input=self._input(), event_subtype="program")
        )
        try:
            self._running = await launch(self._program, self._reaper)
        except (OSError, ValueError) as error:
            self._result = loop.create_task(self._conclude(_not_started(self._program, error), began))
        else:
            self._result = loop.create_task(self._attend(self._running, began))

    async def ended(self) -> Ended:
        """Wait until the program and all it has started are gone, and its pipes are read to their ends."""
        if self._result is None:
            raise RuntimeError("the program was not started")
        return await asyncio.shield(self._result)

    async def done(self) -> Ended:
        """The same: a program has done its task when it has ended."""
        return await self.ended()

    @property
    def follows_up(self) -> bool:
        """Never: it is gone."""
        return False

    async def inject(self, message: InboxMessage) -> None:
        """Write the message to the program's standard input; an `interrupt` stops what it does first, and once."""
        running = self._running
        if running is None or running.exit.done():
            raise CannotTakeError("the program has ended; it takes no follow-up")
        if message.message_type == "interrupt" and message.message not in self._stopped_for:
            await self.interrupt(message.message)
        if self._program.stdin is not None:
            raise CannotTakeError("the program's standard input was its task; it takes no messages")
        try:
            await running.write(one_line(message.content))
        except OSError:
            raise CannotTakeError("the program has closed its standard input") from None

    async def interrupt(self, message: str | None = None, /) -> None:
        """SIGINT to the program's group: one for each message, as many programs end by a second."""
        if message is not None:
            self._stopped_for.add(message)
        self._signal(SIGINT)

    async def stop(self, grace: float) -> None:
        """SIGTERM to the program's group, SIGKILL after `grace` seconds, and the same for all that it started."""
        self._stopped = True
        self._signal(SIGTERM)
        if self._running is not None:
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(grace):
                    await asyncio.shield(self._running.exit)
        self._signal(SIGKILL)
        if self._result is not None:
            await asyncio.wait([self._result])

    async def _give(self, running: Running) -> None:
        if self._program.stdin is not None:
            await running.give(self._program.stdin.encode("utf-8", "replace"))

    def _signal(self, what: Signals) -> None:
        if self._running is not None:
            self._running.signal(what)

    async def _say(self, data: EventData) -> None:
        self._used.count(data)
        await self._voice.say(data)

    def _input(self) -> dict[str, object]:
        return {"argv": list(self._program.argv)}

    async def _attend(self, running: Running, began: float) -> Ended:
        giving = asyncio.create_task(self._give(running))
        readers = asyncio.gather(self._output.read(running.output), self._lines.read(running.events))
        try:
            either: list[asyncio.Future[Any]] = [running.exit, readers]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if readers.done() and readers.exception() is not None:
                # What it says can't be kept any more, so it may not go on.
                running.signal(SIGKILL)
            code = await running.exit
            await end(self._below, _LEFTOVER_GRACE)
            await readers
        finally:
            readers.cancel()
            await end_tasks([giving])
            running.close()
        return await self._conclude(judge(code, stopped=self._stopped, memory_kills=self._memory_kills.new()), began)

    async def _conclude(self, ended: Ended, began: float) -> Ended:
        """Say what came of it."""
        took = (asyncio.get_running_loop().time() - began) * 1000
        failed = ended.error_type is not None
        result = self._output.tail or ended.error
        await self._voice.say(
            AgentToolResult(
                turn=1,
                tool_use_id=self._call,
                result=result,
                result_truncated=self._output.length > TAIL,
                result_full_length=self._output.length,
                is_error=failed,
            )
        )
        response = {"exit_code": ended.exit_code, "signal": ended.signal}
        await self._voice.say(
            AgentToolCompleted(
                turn=1,
                tool=_TOOL,
                tool_use_id=self._call,
                tool_input=self._input(),
                tool_response=response,
                duration_ms=took,
            )
        )
        await self._voice.say(AgentTurnCompleted(turn=1, duration_ms=took, stop_reason=ended.error_type or "exit"))
        return replace(ended, final_output=self._output.tail, used=dict(self._used.totals))


def _not_started(program: Program, error: OSError | ValueError) -> Ended:
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
    return Ended(error_type="start", error=f"{program.argv[0]}: {os.strerror(number)}")
