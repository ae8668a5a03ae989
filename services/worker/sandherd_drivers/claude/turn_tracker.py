"""Handles the agent's messages: maps each SDK message to events, and tracks the state of turns."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from sandherd_drivers.claude.event_mapper import ClaudeEventMapper, EventLine
from sandherd_drivers.claude.outcomes import ClaudeOutcome, outcome_of_result
from sandherd_drivers.claude.tool_results import terminal_output
from sandherd_drivers.claude.transcripts import WRITE_SECONDS, find_transcript, wait_until_written
from sandherd_drivers.claude.usage import SessionUsage
from sandherd_drivers.claude.waiting_messages import NOTICE, WaitingMessage
from sandherd_drivers.commands import origin_of_turn
from sandherd_drivers.wire import Wire

_PREVIEW_LENGTH: Final = 500
_UNTAKEN_SECONDS: Final = 2.0
"""How long a message may remain without a receipt while the agent is idle, in seconds, before it is refused.

The agent begins a turn with it at once, or never; message-relay repeats it after five seconds without a receipt.
"""
_IGNORED_REASON: Final = "the agent ignored it"
_REJECTED_REASON: Final = "a hook rejected it"


class TurnTracker:
    """One session. It has at most one turn at a time; some begin without a message from the driver."""

    def __init__(
        self, wire: Wire, session: str, config: Path, usage: SessionUsage, denials: dict[str, str] | None = None
    ) -> None:
        self.session = session
        self.turn = 0
        self.idle = asyncio.Event()
        self.can_start_turn = asyncio.Event()
        """Cleared while turns are being stopped; a message that was delivered then would be stopped with them."""
        self.can_start_turn.set()
        self.ending = False
        """Set when the driver ends: turns that delivered messages still begin must be stopped."""
        self._wire = wire
        self._config = config
        self._usage = usage
        self._mapper = ClaudeEventMapper(denials={} if denials is None else denials)
        self._waiting: dict[str, WaitingMessage] = {}
        self._refused: dict[str, str] = {}
        self._taken_messages: set[str] = set()
        """The messages that the agent has taken."""
        self._is_prompt_rejected = False
        """Whether a hook has withheld the turn's message from the model. The turn's result names it nevertheless."""
        self._outcome: ClaudeOutcome | None = None
        self._is_result_reported = False
        self._untaken_timer: asyncio.Task[None] | None = None
        self._stop_turn: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._stop_task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is a turn, or a message that will begin one."""
        return bool(self._waiting) or not self.idle.is_set()

    def register(self, uuid: str, message: str | None, content: str, origin: str | None = None) -> None:
        """Register a message before it is delivered. The task has no message id (None), so it gets no receipt."""
        self._waiting[uuid] = WaitingMessage(message, content, origin)

    def stop_turns(self, stop_turn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop the turns that messages already delivered will begin, by calling `stop_turn`."""
        self._stop_turn = stop_turn
        self.can_start_turn.clear()

    def is_waiting(self, uuid: str) -> bool:
        """Whether this message was delivered and the agent has not taken it yet."""
        return uuid in self._waiting

    def should_deliver(self, message: str) -> bool:
        """Whether to deliver this message: the agent has not taken it, and it is not on its way.

        A message that the agent has taken is reported again; one that it ignored may be delivered again.
        """
        if message in self._taken_messages:
            self._wire.report_taken(message)
        return message not in self._taken_messages | {waiting.message for waiting in self._waiting.values()}

    def refuse_waiting(self, reason: str) -> None:
        """Refuse all messages that the agent has not taken."""
        for uuid in list(self._waiting):
            self.refuse(uuid, reason)

    def refuse(self, uuid: str, reason: str) -> None:
        """Refuse this message, if it still waits."""
        message = self._waiting.pop(uuid, WaitingMessage()).message
        if message is not None:
            self._refused[uuid] = message
            self._wire.report_refused(message, reason)

    async def handle(self, message: Any) -> None:
        """Handle one message of the SDK."""
        kind = type(message).__name__
        if kind == "AssistantMessage":
            if not message.error:
                self._usage.record_response(message.message_id, message.model, message.usage)
            self.publish(self._mapper.assistant_events(message))
        elif kind == "UserMessage":
            self._mark_taken(message.uuid)
            _write_output(terminal_output(message.tool_use_result))
            self.publish(self._mapper.user_events(message))
        elif kind == "ResultMessage":
            self._end_turn(message)
        elif hasattr(message, "subtype"):
            await self._handle_notice(message)

    def abort_turn(self) -> None:
        """End a turn that was cut off: publish its last response, and its usage so far."""
        self.publish(self._mapper.end_response())
        self.publish(("agent.usage", charge) for charge in self._usage.charge_without_totals())

    def publish(self, events: Iterable[EventLine]) -> None:
        """Publish events of this turn."""
        for event, data in events:
            self._wire.publish_event(event, turn=self.turn, **data)

    def report_result(
        self,
        error_type: Any,
        error: str,
        stop_reason: str | None,
        final_output: str | None = None,
        *,
        signal: int | None = None,
    ) -> None:
        """Publish the task's result, unless that was done."""
        if not self._is_result_reported:
            self._is_result_reported = True
            self._wire.report_result(
                error_type=error_type,
                error=error,
                signal=signal,
                turns=self.turn,
                final_output=final_output,
                stop_reason=stop_reason,
                session_id=self.session,
            )

    async def report_transcript(self) -> None:
        """Report the current transcript, so that the worker stores it."""
        transcript = find_transcript(self._config, self.session)
        if transcript is not None:
            await wait_until_written(transcript, self._mapper.last_entry_id, self._wire.shutdown_timeout(WRITE_SECONDS))
            self._wire.report_transcript(transcript, self.session)

    async def _handle_notice(self, notice: Any) -> None:
        if notice.subtype == "init":
            self._begin_turn()
        if notice.subtype == "informational":
            self._is_prompt_rejected |= (notice.data.get("prompt_submit_outcome") or {}).get("prompt_kept") is False
        self.publish(self._mapper.system_events(notice))
        if notice.subtype == "session_state_changed":
            if notice.data.get("state") == "idle":
                await self._handle_idle()
            else:
                self._mark_busy()

    def _begin_turn(self) -> None:
        """Report the start of a turn."""
        self.turn += 1
        self._mark_busy()
        self._wire.report_turn(self.turn, "running")
        waiting = list(self._waiting.values())
        preview = waiting[0].content[:_PREVIEW_LENGTH] if waiting else None
        origin = origin_of_turn(message.origin for message in waiting) if waiting else NOTICE
        self.publish([("agent.turn_started", {"prompt_preview": preview, "origin": origin})])
        if self._stop_turn is not None:
            self._stop_task = asyncio.create_task(self._stop_turn())

    def _mark_taken(self, uuid: str | None) -> None:
        """Report a message that the agent has added to its conversation."""
        message = self._waiting.pop(uuid or "", WaitingMessage()).message
        if message is not None:
            self._wire.report_taken(message)
        message = message or self._refused.pop(uuid or "", None)
        if message is not None:
            self._taken_messages.add(message)

    def _refuse_rejected(self, uuid: str) -> None:
        """Refuse this message, unless the agent has taken it; if it is the task, the task ends as failed."""
        is_task = self._waiting.get(uuid, WaitingMessage("")).message is None
        self.refuse(uuid, _REJECTED_REASON)
        if is_task:
            self.report_result("exit_status", _REJECTED_REASON, "passed_over")

    def _end_turn(self, result: Any) -> None:
        """Report the end of a turn; another one may follow at once."""
        for uuid in result.user_message_uuids or []:
            (self._refuse_rejected if self._is_prompt_rejected else self._mark_taken)(uuid)
        self._is_prompt_rejected = False
        if not self._waiting:
            self._allow_turns()
        self.session = result.session_id or self.session
        outcome = self._outcome = outcome_of_result(result)
        self.publish(self._mapper.end_response(result.stop_reason))
        charges = self._usage.charge(result.total_cost_usd, result.model_usage)
        self.publish(("agent.usage", charge) for charge in charges)
        if outcome.error_type is not None:
            self.publish([("agent.error", {"error": outcome.error, "phase": outcome.stop_reason})])
        fields = {"duration_ms": result.duration_ms, "stop_reason": outcome.stop_reason}
        self.publish([("agent.turn_completed", fields)])

    def _mark_busy(self) -> None:
        self.idle.clear()
        if self._untaken_timer is not None:
            self._untaken_timer.cancel()
            self._untaken_timer = None

    async def _handle_idle(self) -> None:
        """The agent is idle. A message that it has not taken is about to begin a turn, or was ignored."""
        if self._waiting:
            self._mark_busy()
            self._untaken_timer = asyncio.create_task(self._refuse_untaken())
            return
        self._allow_turns()
        await self.report_transcript()
        outcome = self._outcome
        # While the driver ends, `ClaudeSession.close` reports a failed turn as stopped.
        if outcome is not None and not outcome.interrupted and not (self.ending and outcome.error_type):
            self.report_result(outcome.error_type, outcome.error, outcome.stop_reason, outcome.final_output)
        self._wire.report_turn(self.turn, "idle")
        self.idle.set()

    def _allow_turns(self) -> None:
        if not self.ending:
            self._stop_turn = None
            self.can_start_turn.set()

    async def _refuse_untaken(self) -> None:
        await asyncio.sleep(_UNTAKEN_SECONDS)
        self._untaken_timer = None
        is_task = any(waiting.message is None for waiting in self._waiting.values())
        self.refuse_waiting(_IGNORED_REASON)
        if is_task:
            self.report_result("exit_status", _IGNORED_REASON, "passed_over")
        await self._handle_idle()


def _write_output(text: str) -> None:
    """Print the output of the agent's commands to the driver's own output."""
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
