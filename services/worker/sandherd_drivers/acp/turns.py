"""The turns of a session: one prompt each, from its start to its end."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from sandherd_drivers.acp.client import WorkClient
from sandherd_drivers.acp.content_blocks import Json
from sandherd_drivers.acp.outcomes import INTERRUPTED, AcpOutcome
from sandherd_drivers.acp.program import AgentProgram
from sandherd_drivers.acp.receipts import PromptReceipts
from sandherd_drivers.acp.session import AcpSession, UnansweredError
from sandherd_drivers.wire import Wire

_CANCEL_INTERVAL: Final = 30.0
"""Seconds after which a cancelled turn that continues is cancelled again, with an error event."""
_PREVIEW_LENGTH: Final = 200


class PromptTurns:
    """Runs turns, one at a time."""

    def __init__(self, wire: Wire, program: AgentProgram, session: AcpSession, client: WorkClient) -> None:
        self._wire, self._program, self._session, self._client = wire, program, session, client
        self._cancel_task: asyncio.Task[None] | None = None
        self._reported_invalid_lines = 0
        self.number = 0
        self.is_running = False

    async def run(
        self, texts: Sequence[str], receipts: PromptReceipts, origin: str | None, *, cancelled: bool = False
    ) -> AcpOutcome:
        """Run a turn with these texts as its prompt; `receipts` reports their messages as taken or refused.

        With `cancelled`, the turn is cancelled as soon as its prompt was sent.
        """
        started_at = time.monotonic()
        self._start_turn(texts[0], origin)
        if cancelled:
            self.cancel()
        try:
            outcome, usage = await self._prompt(texts, receipts)
        finally:
            self.is_running = False
            self._wire.deny_pending_approvals("the turn has ended")
            if self._cancel_task is not None:
                self._cancel_task.cancel()
        receipts.refuse_sent(outcome.error or "the agent did not take it")
        self._end(outcome, usage, round((time.monotonic() - started_at) * 1000))
        return outcome

    def cancel(self) -> None:
        """Cancel the running turn, if there is one; its pending approvals are denied."""
        if not self.is_running or self._client.stopping:
            return
        self._client.stopping = True
        self._wire.deny_pending_approvals()
        self._cancel_task = asyncio.create_task(self._repeat_cancel())

    def _start_turn(self, text: str, origin: str | None) -> None:
        # Late updates belong to the previous turn.
        self._client.publish(self._client.updates.begin_turn())
        self.number += 1
        self.is_running, self._client.turn, self._client.stopping = True, self.number, False
        self._wire.report_turn(self.number, "running")
        self._client.publish([("agent.turn_started", {"prompt_preview": text[:_PREVIEW_LENGTH], "origin": origin})])

    def _end(self, outcome: AcpOutcome, usage: Json | None, duration_ms: int) -> None:
        client = self._client
        client.publish(client.updates.end_turn(outcome.stop_reason, usage))
        if count := self._program.invalid_lines - self._reported_invalid_lines:
            error = f"the agent printed {count} lines that are not protocol messages; see its output"
            client.publish([("agent.error", {"error": error, "phase": "protocol"})])
        self._reported_invalid_lines += count
        if outcome.error_type is not None and not outcome.interrupted and not outcome.agent_ended:
            client.publish([("agent.error", {"error": outcome.error, "phase": outcome.stop_reason or "prompt"})])
        client.publish([("agent.turn_completed", {"duration_ms": duration_ms, "stop_reason": outcome.stop_reason})])

    async def _prompt(self, texts: Sequence[str], receipts: PromptReceipts) -> tuple[AcpOutcome, Json | None]:
        """The outcome of the prompt, and the tokens that it used."""
        try:
            return await self._session.prompt(texts, receipts.mark_taken)
        except UnansweredError as error:
            # Some agents respond to a cancelled turn with an error about interrupted work.
            stopped = self._client.stopping and not error.outcome.agent_ended
            return (INTERRUPTED if stopped else error.outcome), None

    async def _repeat_cancel(self) -> None:
        await self._session.cancel()
        while True:
            await asyncio.sleep(_CANCEL_INTERVAL)
            error = f"the agent has not ended its turn {_CANCEL_INTERVAL:.0f} s after it was cancelled"
            self._client.publish([("agent.error", {"error": error, "phase": "interrupt"})])
            await self._session.cancel()
