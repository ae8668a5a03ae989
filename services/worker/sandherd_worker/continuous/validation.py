"""Validates an agent's work: a command beside the agent, published as a tool call, whose exit status decides."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, both, cancel_and_wait
from sandherd.contracts.continuous import Validation
from sandherd.contracts.events.call_facts import ToolOutcome
from sandherd.contracts.events.tools import AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.contracts.names import new_name
from sandherd.process_signals import end
from sandherd_worker.harnesses.base import EventSink
from sandherd_worker.harnesses.exit_reasons import call_outcome, end_of_exit
from sandherd_worker.harnesses.program import Program, RunningProgram, launch
from sandherd_worker.harnesses.terminal_output import CHUNK_BYTES, TAIL_CHARS, TerminalOutput
from sandherd_worker.processes import EXEC_VARIABLE, ProcessOwnership, Reaper
from sandherd_worker.redaction import Redactor

_Early = tuple[ToolOutcome, str]
"""The outcome of a command that was ended early, and the reason."""
TOOL: Final = "validation"
_GRACE: Final = 2.0
"""How long a command may take to end after SIGTERM, in seconds; so may the processes that it leaves."""


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """The result. `why`: why the work is not valid; empty if it is. `output`: the end of the command's output."""

    why: str = ""
    output: str = ""
    outcome: ToolOutcome = "ok"

    @property
    def passed(self) -> bool:
        """Whether the work is valid."""
        return not self.why


@dataclass(frozen=True, kw_only=True)
class ValidationContext:
    """The directory and the environment of the command, and the parts of the worker that it needs."""

    work_dir: Path
    environment: Mapping[str, str]
    sink: EventSink
    redactor: Redactor
    reaper: Reaper
    ownership: ProcessOwnership


class Validator:
    """Runs the validation of one task, any number of times."""

    def __init__(self, validation: Validation, context: ValidationContext) -> None:
        self._validation, self._context = validation, context

    async def run(self, turn: int, stopped: asyncio.Event) -> ValidationResult:
        """Run the command until its end, its timeout, or until `stopped` is set. Raises what the sink raises."""
        call, began = new_name("call"), asyncio.get_running_loop().time()
        tool_input = {"command": self._validation.command, "timeout_seconds": self._validation.timeout_seconds}
        # Published as a program, which has its own time limit, so that the monitor does not report it as stuck.
        await self._context.sink.publish(
            AgentToolUse(turn=turn, tool=TOOL, tool_use_id=call, input=tool_input, event_subtype="program")
        )
        output = TerminalOutput(self._context.redactor, self._context.sink.show)
        code, result = await self._run_command(call, output, stopped)
        await self._context.sink.publish(
            AgentToolResult(
                turn=turn,
                tool_use_id=call,
                result=output.tail or result.why,
                result_truncated=output.length > TAIL_CHARS,
                result_full_length=output.length,
                is_error=not result.passed,
                outcome=result.outcome,
                exit_code=_exit_status(code),
            )
        )
        await self._context.sink.publish(
            AgentToolCompleted(
                turn=turn,
                tool=TOOL,
                tool_use_id=call,
                tool_input=tool_input,
                tool_response={"exit_code": code, "passed": result.passed},
                duration_ms=(asyncio.get_running_loop().time() - began) * 1000,
                outcome=result.outcome,
                exit_code=_exit_status(code),
            )
        )
        return result

    async def _run_command(
        self, call: str, output: TerminalOutput, stopped: asyncio.Event
    ) -> tuple[int | None, ValidationResult]:
        program = Program(
            argv=["/bin/sh", "-c", self._validation.command],
            environment={**self._context.environment, EXEC_VARIABLE: call},
            work_dir=self._context.work_dir,
        )
        try:
            running = await launch(program, self._context.reaper)
        except (OSError, ValueError) as error:
            return None, ValidationResult(why=f"it could not be started: {error}", outcome="failed")
        self._context.ownership.enter(call, running.leader)
        try:
            early = await self._run(call, running, output, stopped)
        finally:
            self._context.ownership.remove(call)
        code = running.exit.result()
        ended = end_of_exit(code, stopped=False, memory_kills=0)
        outcome, why = early or (call_outcome(ended), ended.error)
        return code, ValidationResult(why=why, output=output.tail, outcome=outcome)

    async def _run(
        self, call: str, running: RunningProgram, output: TerminalOutput, stopped: asyncio.Event
    ) -> _Early | None:
        """Run until no process of the command is left; returns why it was ended early, if it was."""
        readers = asyncio.ensure_future(both(output.read(running.output), _ignore(running.events)))
        readers.add_done_callback(lambda over: _kill_on_output_error(over, running))
        halt = asyncio.ensure_future(stopped.wait())
        try:
            await running.write_stdin(b"")
            either: list[asyncio.Future[Any]] = [running.exit, halt]
            await asyncio.wait(either, timeout=self._validation.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            early = self._ended_early(running, stopped)
            await _end(running)
            await end(lambda: self._context.ownership.of(call), _GRACE)
            await readers
        finally:
            running.signal(SIGKILL)
            running.close()
            await cancel_and_wait([halt, readers], again_after=SHORT_CLEANUP_SECONDS)
        return early

    def _ended_early(self, running: RunningProgram, stopped: asyncio.Event) -> _Early | None:
        if running.exit.done():
            return None
        if stopped.is_set():
            return "cancelled", "it was stopped"
        return "timed_out", f"it did not end within {self._validation.timeout_seconds} s"


def _exit_status(code: int | None) -> int | None:
    return code if code is not None and code >= 0 else None


async def _end(running: RunningProgram) -> None:
    running.signal(SIGTERM)
    await asyncio.wait([running.exit], timeout=_GRACE)
    running.signal(SIGKILL)
    await running.exit


def _kill_on_output_error(readers: "asyncio.Future[Any]", running: RunningProgram) -> None:
    """Kill the command if its output can't be stored any more."""
    if not readers.cancelled() and readers.exception() is not None:
        running.signal(SIGKILL)


async def _ignore(events: asyncio.StreamReader) -> None:
    """Events of the validation command are ignored: it must not publish in the agent's name."""
    while await events.read(CHUNK_BYTES):
        pass
