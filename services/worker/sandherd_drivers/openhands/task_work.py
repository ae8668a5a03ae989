"""The agent's work: from the task to its result, turn by turn with an outcome each, until the worker sends stop."""

import asyncio
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from sandherd_drivers.openhands import stale_processes
from sandherd_drivers.openhands.agent import OpenHandsAgent
from sandherd_drivers.openhands.event_mapper import Document
from sandherd_drivers.wire import Begin, ErrorType, Interrupt, Message, Wire

_TRANSIENT_KINDS: Final = frozenset({"rate_limit", "transient"})
"""The SDK's classes of transient errors."""
_KEY_VARIABLE: Final = "LLM_API_KEY"
_AUTHENTICATION_ERROR: Final = "LLMAuthenticationError"
_PERMANENT_ERRORS: Final = frozenset({_AUTHENTICATION_ERROR, "LLMBadRequestError", "NotFoundError"})
"""The SDK's names for permanent errors of the model's server."""
_STOP_REASONS: Final = {"MaxIterationsReached": "max_iterations"}
_STUCK_ERROR: Final = "the agent repeats itself without progress"


@dataclass(frozen=True)
class OpenHandsOutcome:
    """How a turn ended. `error_type` is None if nothing failed."""

    stop_reason: str
    error_type: ErrorType | None = None
    error: str = ""
    is_final: bool = True
    """Whether the agent ended the turn by itself. A turn that was stopped is not the task's result."""


def outcome_of_status(status: str, error_event: Document | None, *, stopped: bool) -> OpenHandsOutcome:
    """The outcome for the conversation's status after a turn. `error_event` is the error event of this turn, if any."""
    if status == "finished":
        return OpenHandsOutcome("finished")
    if status == "stuck":
        return OpenHandsOutcome("stuck", "exit_status", _STUCK_ERROR)
    if status == "error":
        return _failure(error_event or {})
    return OpenHandsOutcome("stopped" if stopped else "interrupted", is_final=False)


def _failure(error_event: Document) -> OpenHandsOutcome:
    code, detail = str(error_event.get("code") or "error"), str(error_event.get("detail") or "it failed")
    kind = (error_event.get("classification") or {}).get("kind")
    permanent: ErrorType = "model_refused" if code in _PERMANENT_ERRORS or kind == "auth" else "exit_status"
    is_key_missing = (code == _AUTHENTICATION_ERROR or kind == "auth") and not os.environ.get(_KEY_VARIABLE)
    return OpenHandsOutcome(
        _STOP_REASONS.get(code, code),
        "model_unavailable" if kind in _TRANSIENT_KINDS else permanent,
        f"{code}: {detail}"
        + (f"; {_KEY_VARIABLE} is not set: add --secret-env {_KEY_VARIABLE}" if is_key_missing else ""),
    )


_TURN_GRACE: Final = 3.0
"""How long a turn may take to end when the driver stops, in seconds."""
_CLOSE_GRACE: Final = 3.0
"""How long closing the conversation may take, in seconds."""
_LEFTOVER_GRACE: Final = 0.5
"""How long the agent's remaining processes may take to end after SIGTERM, in seconds."""
_AGENT_ENDING: Final = "the agent is ending"


async def main(wire: Wire) -> None:
    """Follow the worker's commands until stop, or until the agent can't be started."""
    work = OpenHandsWork(wire)
    loop = asyncio.get_running_loop()
    executing, ended = loop.create_task(_execute_commands(wire, work)), loop.create_task(work.ended.wait())
    await asyncio.wait({executing, ended}, return_when=asyncio.FIRST_COMPLETED)
    await work.end()
    error = executing.exception() if executing.done() else None
    if error is not None:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread of the SDK may hang in a command that can't be ended; Python would wait for it.
    os._exit(0 if error is None else 1)


async def _execute_commands(wire: Wire, work: "OpenHandsWork") -> None:
    async for command in wire.commands():
        match command:
            case Begin():
                work.begin(command)
            case Message():
                work.deliver(command)
            case Interrupt():
                work.interrupt()


class OpenHandsWork:
    """One agent from its start to its end."""

    def __init__(self, wire: Wire) -> None:
        self.ended = asyncio.Event()
        """Set when the agent can't continue."""
        self._wire = wire
        wire.derive_model_calls()
        self._agent = OpenHandsAgent(wire)
        self._process_mark = stale_processes.mark_children()
        self._run_task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusal: str | None = None
        """Why messages are refused; None while they are accepted."""
        self._is_result_reported = False

    def begin(self, command: Begin) -> None:
        """Start the task; messages that arrive meanwhile wait."""
        self._idle.clear()
        self._run_task = asyncio.get_running_loop().create_task(self._run(command))

    def deliver(self, message: Message) -> None:
        """Pass the agent a message; an `interrupt` first stops the turn."""
        if self._refusal is not None:
            self._wire.report_refused(message.message, self._refusal)
            return
        if message.message_type == "interrupt" and not self._agent.has_received(message):
            self.interrupt()
        self._agent.deliver(message)

    def interrupt(self) -> None:
        """Stop the turn; the conversation continues with the next message."""
        if self._idle.is_set():
            self._wire.report_turn(self._agent.turn, "idle")
        else:
            self._agent.interrupt()

    async def end(self) -> None:
        """Stop: write the complete transcript, and leave no process that the agent started."""
        if self._refusal is None:
            self._refuse(_AGENT_ENDING)
        if self._agent.is_open:
            self._agent.interrupt()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wire.shutdown_timeout(_TURN_GRACE)):
                    await self._idle.wait()
            self._publish_usage()
            self._agent.report_transcript()
        if not self._is_result_reported:
            self._report_result("stopped", "it was stopped", stop_reason="stopped")
        try:
            if self._agent.is_open:
                await self._close()
        finally:
            await stale_processes.end(self._process_mark, self._wire.shutdown_timeout(_LEFTOVER_GRACE))

    async def _close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wire.shutdown_timeout(_CLOSE_GRACE)):
                await asyncio.to_thread(self._agent.conversation.close)

    # --- turns

    async def _run(self, command: Begin) -> None:
        agent = self._agent
        try:
            conversation = await asyncio.to_thread(agent.open, command)
        except Exception as error:  # noqa: BLE001  # after any error of the SDK, the agent can't start
            self._fail("start", error)
            return
        self._wire.report_ready(
            session_id=conversation.session_id, model=conversation.model, version=conversation.version
        )
        agent.attach(conversation)
        try:
            while self._refusal is None:
                await self._run_turn()
                await agent.run_requested.wait()
        except Exception as error:  # noqa: BLE001  # an error of the driver, or of the SDK outside a run
            self._fail("internal", error)
        finally:
            self._idle.set()

    async def _run_turn(self) -> None:
        agent, started_at = self._agent, time.monotonic()
        agent.turn += 1
        self._idle.clear()
        self._wire.report_turn(agent.turn, "running")
        self._publish("agent.turn_started", prompt_preview=agent.preview, origin=agent.origin)
        status = await agent.run()
        outcome = outcome_of_status(status, agent.mapper.last_error, stopped=self._refusal is not None)
        self._publish_usage()
        duration_ms = (time.monotonic() - started_at) * 1000
        self._publish("agent.turn_completed", duration_ms=duration_ms, stop_reason=outcome.stop_reason)
        agent.report_transcript()
        self._finish_turn(outcome)

    def _finish_turn(self, outcome: OpenHandsOutcome) -> None:
        """Report that the agent is idle after a turn, and the task's result if the agent ended the turn by itself."""
        self._agent.interrupted = False
        if outcome.is_final and not self._is_result_reported:
            self._report_result(outcome.error_type, outcome.error, stop_reason=outcome.stop_reason)
        self._wire.report_turn(self._agent.turn, "idle")
        self._idle.set()

    def _fail(self, error_type: Literal["start", "internal"], error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._publish("agent.error", error=text, phase=error_type)
        self._refuse(f"the agent failed: {text[:200]}")
        if not self._is_result_reported:
            self._report_result(error_type, text, stop_reason=error_type)
        self._idle.set()
        self.ended.set()

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._agent.refuse_waiting(reason)

    def _report_result(self, error_type: ErrorType | None, error: str, *, stop_reason: str) -> None:
        agent = self._agent
        self._is_result_reported = True
        self._publish_usage()
        self._wire.report_result(
            error_type=error_type,
            error=error,
            turns=agent.turn,
            final_output=agent.mapper.last_message,
            stop_reason=stop_reason,
            session_id=agent.conversation.session_id if agent.is_open else None,
        )

    def _publish_usage(self) -> None:
        """Publish the usage since the last report, also of a turn that has not ended."""
        agent = self._agent
        if agent.is_open and (usage := agent.meter.difference(agent.conversation.totals)):
            self._publish("agent.usage", model=agent.conversation.model, **usage)

    def _publish(self, type: str, **data: object) -> None:
        self._wire.publish_event(type, turn=self._agent.turn, **data)
