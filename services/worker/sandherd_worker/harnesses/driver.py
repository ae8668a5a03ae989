"""The harness of agents that need an SDK, which runs in another process, the driver. The worker does not trust it.

The driver's protocol is `sandherd_drivers.wire`. The driver belongs to the agent's trust domain: it may end at any
moment, send anything, or send nothing. When it ends, all processes that it started are ended, too.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, both, cancel_and_wait
from sandherd.contracts.events import EventData
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.process_signals import end
from sandherd_worker.harnesses import driver_lines as lines
from sandherd_worker.harnesses.approvals import ApprovalGate
from sandherd_worker.harnesses.base import AgentEnd, MessageRefusedError, UsageTotals
from sandherd_worker.harnesses.conclusion import Conclusion
from sandherd_worker.harnesses.driver_task import DriverTask, HarnessContext, as_line, outcome, to_agent
from sandherd_worker.harnesses.event_lines import EventLines
from sandherd_worker.harnesses.exit_reasons import MemoryKills, end_of_exit, not_started, unexpected_end_event
from sandherd_worker.harnesses.program import Program, RunningProgram, launch
from sandherd_worker.harnesses.receipts import Receipts
from sandherd_worker.harnesses.terminal_output import TerminalOutput

_LEFTOVER_GRACE: Final = 0.5
"""How long processes that the driver started may outlive it, in seconds."""
_SHARE_BEFORE_SIGTERM: Final = 0.7
"""The share of the grace period in which a driver may end by itself, before it gets a SIGTERM."""
_AGENT_ENDED: Final = "the agent has ended"


class DriverHarness:
    """Runs one driver, once. A `Harness`."""

    def __init__(self, program: Program, task: DriverTask, context: HarnessContext) -> None:
        self._program, self._task, self._context = program, task, context
        self._output = TerminalOutput(context.redactor, context.sink.show)
        self._lines = EventLines(self._publish, lambda: self._turn, self._handle_driver_line)
        self._approval_gate = ApprovalGate(task.approvals, context.sink.publish, self._decide, lambda: self._stopped)
        self._receipts = Receipts()
        self._conclusion = Conclusion(self._conclude)
        self._used = UsageTotals()
        self._memory_kills = MemoryKills(context.memory_kills)
        self._writing = asyncio.Lock()
        self._ready = asyncio.Event()
        self._turn = 1
        self._session: str | None = None
        self._stopped = self._interrupted = False
        self._failure_after_result: AgentEnd | None = None
        self._running: RunningProgram | None = None
        self._transcript: tuple[Path, str] | None = None
        self._begin_task: asyncio.Task[None] | None = None
        self._attending: asyncio.Task[None] | None = None
        self._done: asyncio.Future[AgentEnd] = asyncio.get_running_loop().create_future()

    # --- called by the worker

    async def start(self) -> None:
        """Start the driver. The task is written in the background, as the driver may not read it."""
        try:
            self._running = await launch(self._program, self._context.reaper)
        except (OSError, ValueError) as error:
            self._conclude(not_started(self._program.argv[0], error))
            await self._context.withdraw_tools()
            self._receipts.close("the agent could not be started")
            self._ready.set()
            return
        self._attending = asyncio.create_task(self._attend(self._running))
        self._attending.add_done_callback(lambda over: over.cancelled() or over.exception())
        await self._context.offer_tools(self._approval_gate.request_answer, lambda: self._turn)
        await self._writing.acquire()
        self._begin_task = asyncio.create_task(self._send_begin(self._running))

    async def wait_done(self) -> AgentEnd:
        """Wait for the result that the driver sends, or for the driver's end."""
        return await asyncio.shield(self._done)

    async def ended(self) -> AgentEnd:
        """Wait until the driver and all processes it started have ended, and all their events are published.

        If a driver fails after it has completed its task, this end differs from the task's result.
        """
        if self._attending is not None:
            await asyncio.shield(self._attending)
        return self._failure_after_result or await self.wait_done()

    @property
    def follows_up(self) -> bool:
        """Whether the driver still runs."""
        return self._running is not None and not self._running.exit.done() and not self._stopped

    async def inject(self, message: InboxMessage) -> None:
        """Pass a message to the agent, and wait until the agent has taken it. An `interrupt` stops the turn first."""
        if message.message_type == "approval":
            await self._approval_gate.answer(message)
            return
        await self._ready.wait()
        with self._conclusion.delivering():
            await self._deliver(message)

    async def _deliver(self, message: InboxMessage) -> None:
        if message.message_type == "interrupt":
            await self.interrupt()
        receipt = self._receipts.expect(message.message)
        try:
            await self._write({"do": "message", **to_agent(message)})
        except OSError:
            raise MessageRefusedError(_AGENT_ENDED) from None
        refusal = await receipt
        if refusal is not None:
            raise MessageRefusedError(refusal)

    async def interrupt(self, _message: str | None = None, /) -> None:
        """Stop the turn; the session stays."""
        self._interrupted = True
        await self._send({"do": "interrupt"})

    async def stop(self, grace: float) -> None:
        """Request the driver's end, then send SIGTERM, and SIGKILL after `grace` seconds. An earlier result stays."""
        self._stopped = True
        if self._running is None or self._attending is None:
            return
        before_sigterm = grace * _SHARE_BEFORE_SIGTERM
        stopping = asyncio.create_task(self._send({"do": "stop", "grace": before_sigterm}))
        for seconds, signal in ((before_sigterm, SIGTERM), (grace - before_sigterm, SIGKILL)):
            await asyncio.wait([self._running.exit], timeout=seconds)
            self._running.signal(signal)
        await cancel_and_wait([stopping], again_after=SHORT_CLEANUP_SECONDS)
        await asyncio.wait([self._attending])

    # --- to the driver

    async def _send_begin(self, running: RunningProgram) -> None:
        """Write the first line; no other line is written before it."""
        try:
            with suppress(OSError):
                await running.write(as_line(self._task.begin_command()))
        finally:
            self._writing.release()

    async def _send(self, command: Mapping[str, Any]) -> None:
        """Send a command to the driver; without effect if the driver no longer reads."""
        with suppress(OSError):
            await self._write(command)

    async def _write(self, command: Mapping[str, Any]) -> None:
        """Write a command. Raises `BrokenPipeError` if the driver does not read."""
        if self._running is None:
            raise BrokenPipeError
        async with self._writing:
            await self._running.write(as_line(command))

    async def _decide(self, question: str, granted: bool, reason: str | None, by_user: bool) -> None:  # noqa: FBT001  # an answer
        decision = {"approval_id": question, "granted": granted, "reason": reason, "by_user": by_user}
        await self._send({"do": "decide", **decision})

    # --- from the driver

    async def _publish(self, data: EventData) -> None:
        self._used.count(data)
        await self._context.sink.publish(data)

    async def _handle_driver_line(self, type: str, data: dict[str, Any]) -> None:
        match lines.read_driver_line(type, data):
            case lines.ReadyLine(session_id=session):
                self._session = session
                self._ready.set()
            case lines.MessageTaken() | lines.MessageRefused() as receipt:
                self._receipts.resolve(receipt.message, receipt.refusal)
            case lines.TurnLine(turn=turn, state=state):
                await self._on_turn(turn, working=state == "running")
            case lines.ApprovalLine(approval_id=question, tool=tool, input=input, reason=reason):
                await self._approval_gate.request_approval(question, tool, input, reason, self._turn)
            case lines.TranscriptLine(path=path, session_id=session, keep=now):
                self._transcript = (Path(path), session)
                if now:
                    await self._context.keep(*self._transcript)
            case lines.ResultLine() as result:
                kills = self._memory_kills.new()
                self._conclusion.result(outcome(result, self._session, stopped=self._stopped, memory_kills=kills))

    async def _on_turn(self, turn: int, *, working: bool) -> None:
        # An agent that was interrupted for a message may start the next turn without reporting itself idle.
        if not working or (self._interrupted and turn > self._turn):
            self._interrupted = False
            await self._approval_gate.withdraw(self._turn)
        self._turn = turn
        await self._context.turned(turn, working)
        self._conclusion.turn(working=working)

    def _conclude(self, ended: AgentEnd) -> None:
        """Set the task's result; the first one counts."""
        if not self._done.done():
            output = self._output.tail if ended.final_output is None else ended.final_output
            turns = max(ended.turns, self._turn)
            self._done.set_result(replace(ended, turns=turns, final_output=output, used=dict(self._used.totals)))

    # --- the driver's process

    async def _attend(self, running: RunningProgram) -> None:
        readers = asyncio.ensure_future(both(self._output.read(running.output), self._lines.read(running.events)))
        try:
            either: list[asyncio.Future[Any]] = [running.exit, readers]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if readers.done() and readers.exception() is not None:
                # The driver's events and output can't be stored any more, so it may not continue.
                running.signal(SIGKILL)
            code = await running.exit
            self._refuse_messages()
            await end(self._context.below, _LEFTOVER_GRACE)
            await readers
            await self._driver_ended(code)
        except BaseException as error:  # waiters must get the error, also a cancellation
            if not self._done.done():
                self._done.set_exception(error)
            raise
        finally:
            begun = [self._begin_task] if self._begin_task else []
            await cancel_and_wait([readers, *begun], again_after=SHORT_CLEANUP_SECONDS)
            self._refuse_messages()
            await self._approval_gate.close()
            await self._context.withdraw_tools()
            running.close()

    def _refuse_messages(self) -> None:
        """Refuse all messages from now on, because the driver has ended."""
        self._receipts.close(_AGENT_ENDED)
        self._ready.set()

    async def _driver_ended(self, code: int) -> None:
        """Conclude after the driver's end; publish an event if the end was not requested."""
        if code != 0 and self._transcript is not None:
            await self._context.store_session(*self._transcript)
        await self._approval_gate.withdraw(self._turn, _AGENT_ENDED)
        ended = end_of_exit(code, stopped=self._stopped, memory_kills=self._memory_kills.new())
        if ended.error_type is None and not self._done.done():
            ended = replace(ended, error_type="internal", error="it ended without reporting a result")
        if not self._stopped and ended.error_type is not None:
            await self._context.sink.publish(unexpected_end_event(ended, self._turn, len(self._output.tail)))
        self._conclusion.close()
        if self._done.done() and not self._stopped:
            self._failure_after_result = ended if ended.error_type is not None else None
            await self._context.turned(self._turn, False)
        self._conclude(replace(ended, session_id=self._session))
