"""Judging an agent's work: a command beside the agent, said as a tool call, whose exit status decides."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Final

from sandherd.contracts.continuous import Validation
from sandherd.contracts.events.tools import AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.contracts.names import new_name
from sandherd_worker.families import Families
from sandherd_worker.harnesses.base import Voice
from sandherd_worker.harnesses.judging import judge
from sandherd_worker.harnesses.output import CHUNK_BYTES, TAIL, Output
from sandherd_worker.harnesses.program import Program, Running, launch
from sandherd_worker.processes import EXEC_VARIABLE, Reaper, end
from sandherd_worker.redaction import Redactor

TOOL: Final = "validation"
_GRACE: Final = 2.0
"""How long a command that has to end may take to, and what it leaves behind, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of it. `why` is empty if the work is valid; `output` is the end of what the command has shown."""

    why: str = ""
    output: str = ""

    @property
    def passed(self) -> bool:
        """Whether the work is valid."""
        return not self.why


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and for whom the command runs."""

    work_dir: Path
    environment: Mapping[str, str]
    voice: Voice
    redactor: Redactor
    reaper: Reaper
    families: Families


class Validator:
    """Runs one validation, as often as it is asked to."""

    def __init__(self, wanted: Validation, place: Place) -> None:
        self._wanted, self._place = wanted, place

    async def run(self, turn: int, stopped: asyncio.Event) -> Found:
        """Run it once, to its end, its time-out or until `stopped`. Raises what the voice raises."""
        call, began = new_name("call"), asyncio.get_running_loop().time()
        given = {"command": self._wanted.command, "timeout_seconds": self._wanted.timeout_seconds}
        # It has a limit of its own, so that the monitor need not hold it for stuck.
        await self._place.voice.say(
            AgentToolUse(turn=turn, tool=TOOL, tool_use_id=call, input=given, event_subtype="program")
        )
        output = Output(self._place.redactor, self._place.voice.show)
        code, found = await self._judge(call, output, stopped)
        await self._place.voice.say(
            AgentToolResult(
                turn=turn,
                tool_use_id=call,
                result=output.tail or found.why,
                result_truncated=output.length > TAIL,
                result_full_length=output.length,
                is_error=not found.passed,
            )
        )
        await self._place.voice.say(
            AgentToolCompleted(
                turn=turn,
                tool=TOOL,
                tool_use_id=call,
                tool_input=given,
                tool_response={"exit_code": code, "passed": found.passed},
                duration_ms=(asyncio.get_running_loop().time() - began) * 1000,
            )
        )
        return found

    async def _judge(self, call: str, output: Output, stopped: asyncio.Event) -> tuple[int | None, Found]:
        program = Program(
            argv=["/bin/sh", "-c", self._wanted.command],
            environment={**self._place.environment, EXEC_VARIABLE: call},
            work_dir=self._place.work_dir,
        )
        try:
            running = await launch(program, self._place.reaper)
        except (OSError, ValueError) as error:
            return None, Found(why=f"it could not be started: {error}")
        self._place.families.enter(call, running.leader)
        try:
            why = await self._run(call, running, output, stopped)
        finally:
            self._place.families.leave(call)
        code = running.exit.result()
        why = why or judge(code, stopped=False, memory_kills=0).error
        return code, Found(why=why, output=output.tail)

    async def _run(self, call: str, running: Running, output: Output, stopped: asyncio.Event) -> str:
        """Until nothing of it is left; says why it was ended, if it was."""
        readers = asyncio.gather(output.read(running.output), _pass_over(running.events))
        readers.add_done_callback(lambda over: _kill_unheard(over, running))
        halt = asyncio.ensure_future(stopped.wait())
        try:
            await running.give(b"")
            either: list[asyncio.Future[Any]] = [running.exit, halt]
            await asyncio.wait(either, timeout=self._wanted.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            why = self._why_ended(running, stopped)
            await _end(running)
            await end(lambda: self._place.families.of(call), _GRACE)
            await readers
        finally:
            halt.cancel()
            readers.cancel()
            running.signal(SIGKILL)
            running.close()
        return why

    def _why_ended(self, running: Running, stopped: asyncio.Event) -> str:
        if running.exit.done():
            return ""
        if stopped.is_set():
            return "it was stopped"
        return f"it did not end within {self._wanted.timeout_seconds} s"


async def _end(running: Running) -> None:
    running.signal(SIGTERM)
    await asyncio.wait([running.exit], timeout=_GRACE)
    running.signal(SIGKILL)
    await running.exit


def _kill_unheard(readers: "asyncio.Future[Any]", running: Running) -> None:
    """If what it shows can't be kept any more, it may not go on."""
    if not readers.cancelled() and readers.exception() is not None:
        running.signal(SIGKILL)


async def _pass_over(events: asyncio.StreamReader) -> None:
    """What judges the agent's work has nothing to say in the agent's name."""
    while await events.read(CHUNK_BYTES):
        pass
