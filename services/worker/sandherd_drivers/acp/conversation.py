"""The driver: the task and every message become prompts, one turn after the other.

The protocol can't pass a message to a running turn. So messages wait until the turn has ended, and together become the
next prompt. A message of type `interrupt` cancels the turn. A message is reported as taken when the agent has reacted
to its prompt with an update, a request or a response.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from sandherd_drivers.acp.client import WorkClient
from sandherd_drivers.acp.client_files import ClientFiles
from sandherd_drivers.acp.outcomes import AcpOutcome, as_start_failure, outcome_of_exit
from sandherd_drivers.acp.program import AgentProgram
from sandherd_drivers.acp.receipts import PromptReceipts
from sandherd_drivers.acp.session import AcpSession, SessionInfo, UnansweredError
from sandherd_drivers.acp.session_updates import SessionUpdates
from sandherd_drivers.acp.turns import PromptTurns
from sandherd_drivers.approval_policy import needs_approval
from sandherd_drivers.commands import Command
from sandherd_drivers.wire import Begin, Interrupt, Message, Stop, Wire

_START_SECONDS: Final = 120.0
"""How long an agent may take to begin a session, in seconds. It may have to install itself first."""
_STOP_SECONDS: Final = 2.0
"""How long a cancelled turn may take to end when the driver stops, in seconds."""
_STOPPED_OUTCOME: Final = AcpOutcome("stopped", "stopped", "it was stopped before it was done")
_STREAM_ERROR_TYPES: Final = {"signal": "sigkill", "exit_status": "command_failed"}
"""The `error_type` of `agent.stream_error` for the error type of an outcome."""


class AcpConversation:
    """One agent, its session, and the messages for it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._receipts = PromptReceipts(wire)
        self._wakeup = asyncio.Event()
        self._program: AgentProgram | None = None
        self._session: AcpSession | None = None
        self._session_info: SessionInfo | None = None
        self._client: WorkClient | None = None
        self._turns: PromptTurns | None = None
        self._is_result_reported = self._is_stopping = False
        self._idle_after_turn = False
        """After this turn the agent must be idle, even if messages wait: it was interrupted."""

    async def serve(self) -> None:
        """Follow the commands until stop, or until the agent ends."""
        commands = self._wire.commands()
        if not isinstance(begin := await anext(commands), Begin):
            return
        run = asyncio.create_task(self._run(begin))
        reader = asyncio.create_task(self._read_commands(commands))
        await asyncio.wait({run, reader}, return_when=asyncio.FIRST_COMPLETED)
        reader.cancel()
        await self._stop(run)

    # --- commands

    async def _read_commands(self, commands: AsyncIterator[Command]) -> None:
        async for command in commands:
            match command:
                case Message():
                    self._receive(command)
                case Interrupt():
                    self._interrupt()
                case Stop():
                    return
                case _:
                    pass

    def _receive(self, message: Message) -> None:
        if not self._receipts.accept(message):
            return
        self._wakeup.set()
        if message.message_type == "interrupt" and self._turns is not None:
            self._turns.cancel()

    def _interrupt(self) -> None:
        """Stop the turn, also one that is about to begin; an idle agent stays idle."""
        if self._turns is None:
            self._idle_after_turn = True
        elif self._turns.is_running:
            self._idle_after_turn = True
            self._turns.cancel()
        else:
            self._wire.report_turn(self._turn_number, "idle")

    # --- turns

    async def _run(self, begin: Begin) -> None:
        try:
            turns = self._turns = await self._open(begin)
        except UnansweredError as error:
            self._end(as_start_failure(error.outcome))
            return
        outcome = await turns.run([begin.task], self._receipts, begin.origin, cancelled=self._idle_after_turn)
        while not outcome.agent_ended and not self._is_stopping:
            if not self._receipts.refuse_expired() or self._idle_after_turn:
                self._report_idle(outcome, turns.number)
            outcome = await self._run_next_turn(turns)
        self._end(outcome)

    async def _open(self, begin: Begin) -> PromptTurns:
        """Start the agent's program, and open its session. Raises `UnansweredError`."""
        work_dir, argv = Path(begin.work_dir), begin.harness["argv"]
        try:
            program = await AgentProgram.start(argv, work_dir)
        except (OSError, ValueError) as error:
            raise UnansweredError(AcpOutcome(None, "start", f"{argv[0]!r} could not be started: {error}")) from None
        program.exit.add_done_callback(lambda _: self._wakeup.set())
        updates = SessionUpdates(resumed=begin.resume is not None)
        client = self._client = WorkClient(
            self._wire, updates, ClientFiles(work_dir), needs_approval=needs_approval(begin.harness)
        )
        self._program, self._session = (
            program,
            AcpSession(program, client, work_dir, begin.harness.get("mcp_servers") or {}),
        )
        session_info = self._session_info = await self._session.open(begin.resume, _START_SECONDS)
        self._wire.report_ready(
            session_id=session_info.session_id, model=session_info.model, version=session_info.version
        )
        return PromptTurns(self._wire, program, self._session, client)

    async def _run_next_turn(self, turns: PromptTurns) -> AcpOutcome:
        """The outcome of the next turn, which begins when a message waits."""
        assert self._program is not None
        while not self._receipts.waiting and not self._is_stopping and not self._program.exit.done():
            self._wakeup.clear()
            await self._wakeup.wait()
        if self._is_stopping:
            return _STOPPED_OUTCOME
        if not self._receipts.waiting:
            return outcome_of_exit(self._program.exit.result())
        texts = self._receipts.next_prompt()
        return await turns.run(texts, self._receipts, self._receipts.origin)

    # --- results

    def _report_idle(self, outcome: AcpOutcome, turn: int) -> None:
        self._idle_after_turn = False
        if not outcome.interrupted:
            self._report_result(outcome)
        self._wire.report_turn(turn, "idle")

    def _end(self, outcome: AcpOutcome) -> None:
        """Report the result after the last turn, and an error event if the agent ended by itself."""
        if outcome.agent_ended:
            kind = _STREAM_ERROR_TYPES.get(outcome.error_type or "", "unknown") if self._turns else "stream_init"
            fields = {"error": outcome.error, "error_type": kind, "final_output_length": len(self._last_message or "")}
            self._wire.publish_event("agent.stream_error", turn=self._turn_number, **fields)
        self._report_result(outcome)

    def _report_result(self, outcome: AcpOutcome) -> None:
        """Publish the task's result, unless that was done."""
        if self._is_result_reported:
            return
        self._is_result_reported = True
        self._publish_usage()
        outcome = _STOPPED_OUTCOME if outcome.interrupted else outcome
        self._wire.report_result(
            error_type=outcome.error_type,
            error=outcome.error,
            signal=outcome.signal,
            turns=self._turn_number,
            final_output=self._last_message,
            stop_reason=outcome.stop_reason,
            session_id=self._session_info.session_id if self._session_info else None,
        )

    @property
    def _last_message(self) -> str | None:
        return self._client.updates.last_message if self._client else None

    @property
    def _turn_number(self) -> int:
        return self._turns.number if self._turns else 0

    async def _stop(self, run: asyncio.Task[None]) -> None:
        """Cancel a running turn, report the result, refuse the waiting messages, and end the agent."""
        self._is_stopping = True
        self._wakeup.set()
        if self._turns is not None:
            self._turns.cancel()
            await asyncio.wait({run}, timeout=self._wire.shutdown_timeout(_STOP_SECONDS))
        run.cancel()
        await asyncio.wait({run})
        try:
            if run.cancelled() or run.exception() is None:
                self._report_result(_STOPPED_OUTCOME)
            self._receipts.close("the agent has ended")
        finally:
            await self._close()
        if not run.cancelled():
            run.result()

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            self._client.publish(self._client.updates.end())
            self._publish_usage()

    def _publish_usage(self) -> None:
        """Publish usage that is not charged yet: that of a turn that has not ended, or reported after a turn."""
        if self._client is not None:
            self._client.publish(self._client.updates.usage_events())
