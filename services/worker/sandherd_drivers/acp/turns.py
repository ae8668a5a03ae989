"""The turns of a session: one prompt each, from its beginning to its end."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from sandherd_drivers.acp.blocks import Json
from sandherd_drivers.acp.client import WorkClient
from sandherd_drivers.acp.outcomes import INTERRUPTED, Outcome
from sandherd_drivers.acp.program import AgentProgram
from sandherd_drivers.acp.receipts import Receipts
from sandherd_drivers.acp.session import Session, UnansweredError
from sandherd_drivers.wire import Wire

_CANCELLING: Final = 30.0
"""Seconds after which an agent that goes on with a cancelled turn is told again, and people are."""
_PREVIEW: Final = 200


class Turns:
    """Runs them, one at a time."""

    def __init__(self, wire: Wire, program: AgentProgram, session: Session, client: WorkClient) -> None:
        self._wire, self._program, self._session, self._client = wire, program, session, client
        self._insisting: asyncio.Task[None] | None = None
        self._garbage = 0
        self.number = 0
        self.running = False

    async def run(self, texts: Sequence[str], receipts: Receipts, *, cancelled: bool = False) -> Outcome:
        """Run a turn with these texts, for which the receipts are given. `cancelled`: it is to end at once."""
        began = time.monotonic()
        self._begin(texts[0])
        if cancelled:
            self.cancel()
        try:
            outcome, usage = await self._prompted(texts, receipts)
        finally:
            self.running = False
            self._wire.withdraw("the turn has ended")
            if self._insisting is not None:
                self._insisting.cancel()
        receipts.not_taken(outcome.error or "the agent has not taken it")
        self._end(outcome, usage, round((time.monotonic() - began) * 1000))
        return outcome

    def cancel(self) -> None:
        """End the turn that runs, if there is one; what it has asked for is denied."""
        if not self.running or self._client.stopping:
            return
        self._client.stopping = True
        self._wire.withdraw()
        self._insisting = asyncio.create_task(self._insist())

    def _begin(self, text: str) -> None:
        # What came after the last turn belongs to that one.
        self._client.say(self._client.updates.begin_turn())
        self.number += 1
        self.running, self._client.turn, self._client.stopping = True, self.number, False
        self._wire.turn(self.number, "running")
        self._client.say([("agent.turn_started", {"prompt_preview": text[:_PREVIEW]})])

    def _end(self, outcome: Outcome, usage: Json | None, took: int) -> None:
        client = self._client
        client.say(client.updates.end_turn(outcome.stop_reason, usage))
        if count := self._program.garbage - self._garbage:
            error = f"the agent printed {count} lines that are no messages of the protocol; see its output"
            client.say([("agent.error", {"error": error, "phase": "protocol"})])
        self._garbage += count
        if outcome.error_type is not None and not outcome.interrupted and not outcome.gone:
            client.say([("agent.error", {"error": outcome.error, "phase": outcome.stop_reason or "prompt"})])
        client.say([("agent.turn_completed", {"duration_ms": took, "stop_reason": outcome.stop_reason})])

    async def _prompted(self, texts: Sequence[str], receipts: Receipts) -> tuple[Outcome, Json | None]:
        """The outcome of the prompt, and its tokens."""
        try:
            return await self._session.prompt(texts, receipts.taken)
        except UnansweredError as error:
            # Some agents answer a turn that was cancelled with an error of what they had to break off.
            stopped = self._client.stopping and not error.outcome.gone
            return (INTERRUPTED if stopped else error.outcome), None

    async def _insist(self) -> None:
        await self._session.cancel()
        while True:
            await asyncio.sleep(_CANCELLING)
            error = f"the agent has not ended its turn {_CANCELLING:.0f} seconds after it was told to"
            self._client.say([("agent.error", {"error": error, "phase": "interrupt"})])
            await self._session.cancel()
