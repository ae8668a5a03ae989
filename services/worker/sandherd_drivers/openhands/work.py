"""The agent's work: from the task to its outcome, turn by turn, and then until the worker says stop."""

import asyncio
import os
import sys
import time
import traceback
from contextlib import suppress
from typing import Final, Literal

from sandherd_drivers.openhands import leftovers
from sandherd_drivers.openhands.agent import Agent
from sandherd_drivers.openhands.outcomes import Outcome, judge
from sandherd_drivers.wire import Begin, ErrorType, Interrupt, Message, Wire

_TURN_GRACE: Final = 3.0
"""How long a turn may take to end when all has to end, in seconds."""
_CLOSE_GRACE: Final = 3.0
_LEFTOVER_GRACE: Final = 0.5
_ENDING: Final = "the agent is ending"


async def main(wire: Wire) -> None:
    """Do what the worker says, until it says stop, or the agent can't be started."""
    work = Work(wire)
    loop = asyncio.get_running_loop()
    obeying, gone = loop.create_task(_obey(wire, work)), loop.create_task(work.gone.wait())
    await asyncio.wait({obeying, gone}, return_when=asyncio.FIRST_COMPLETED)
    await work.end()
    fault = obeying.exception() if obeying.done() else None
    if fault is not None:
        traceback.print_exception(fault)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread of the SDK's may hang in a command that can't be ended; Python would wait for it.
    os._exit(0 if fault is None else 1)


async def _obey(wire: Wire, work: "Work") -> None:
    async for command in wire.commands():
        match command:
            case Begin():
                work.begin(command)
            case Message():
                work.take(command)
            case Interrupt():
                work.interrupt()


class Work:
    """One agent from its beginning to its end."""

    def __init__(self, wire: Wire) -> None:
        self.gone = asyncio.Event()
        """Set when the agent is beyond help."""
        self._wire = wire
        wire.follow_model()
        self._agent = Agent(wire)
        self._mark = leftovers.mark()
        self._working: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusal: str | None = None
        """Why it takes no messages any more."""
        self._judged = False

    def begin(self, command: Begin) -> None:
        """Begin with the task; what is said to the agent meanwhile waits."""
        self._idle.clear()
        self._working = asyncio.get_running_loop().create_task(self._work(command))

    def take(self, message: Message) -> None:
        """Give the agent a message; an `interrupt` stops what it does first."""
        if self._refusal is not None:
            self._wire.refused(message.message, self._refusal)
            return
        if message.message_type == "interrupt" and not self._agent.knows(message):
            self.interrupt()
        self._agent.take(message)

    def interrupt(self) -> None:
        """Stop the turn; the conversation goes on with the next message."""
        if self._idle.is_set():
            self._wire.turn(self._agent.turn, "idle")
        else:
            self._agent.interrupt()

    async def end(self) -> None:
        """End in order: the transcript has all that was said, and nothing that the agent started is left."""
        if self._refusal is None:
            self._refuse(_ENDING)
        if self._agent.is_open:
            self._agent.interrupt()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wire.within(_TURN_GRACE)):
                    await self._idle.wait()
            self._charge()
            self._agent.keep_transcript()
        if not self._judged:
            self._conclude("stopped", "it was stopped", stop_reason="stopped")
        try:
            if self._agent.is_open:
                await self._close()
        finally:
            await leftovers.end(self._mark, self._wire.within(_LEFTOVER_GRACE))

    async def _close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wire.within(_CLOSE_GRACE)):
                await asyncio.to_thread(self._agent.conversation.close)

    # --- turns

    async def _work(self, command: Begin) -> None:
        agent = self._agent
        try:
            conversation = await asyncio.to_thread(agent.open, command)
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises, it can't begin
            self._give_up("start", error)
            return
        self._wire.ready(session_id=conversation.session_id, model=conversation.model, version=conversation.version)
        agent.opened(conversation)
        try:
            while self._refusal is None:
                await self._take_turn()
                await agent.wanted.wait()
        except Exception as error:  # noqa: BLE001  # a fault of ours, or one of the SDK's outside of a run
            self._give_up("internal", error)
        finally:
            self._idle.set()

    async def _take_turn(self) -> None:
        agent, began = self._agent, time.monotonic()
        agent.turn += 1
        self._idle.clear()
        self._wire.turn(agent.turn, "running")
        self._say("agent.turn_started", prompt_preview=agent.preview)
        status = await agent.run()
        outcome = judge(status, agent.telling.last_error, stopped=self._refusal is not None)
        self._charge()
        took = (time.monotonic() - began) * 1000
        self._say("agent.turn_completed", duration_ms=took, stop_reason=outcome.stop_reason)
        agent.keep_transcript()
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        """The turn is over: it waits, and if it has come to an end by itself, that is what came of the task."""
        self._agent.interrupted = False
        if outcome.settled and not self._judged:
            self._conclude(outcome.error_type, outcome.error, stop_reason=outcome.stop_reason)
        self._wire.turn(self._agent.turn, "idle")
        self._idle.set()

    def _give_up(self, error_type: Literal["start", "internal"], error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._say("agent.error", error=text, phase=error_type)
        self._refuse(f"the agent does not work: {text[:200]}")
        if not self._judged:
            self._conclude(error_type, text, stop_reason=error_type)
        self._idle.set()
        self.gone.set()

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._agent.refuse_held(reason)

    def _conclude(self, error_type: ErrorType | None, error: str, *, stop_reason: str) -> None:
        agent = self._agent
        self._judged = True
        self._charge()
        self._wire.result(
            error_type=error_type,
            error=error,
            turns=agent.turn,
            final_output=agent.telling.last_words,
            stop_reason=stop_reason,
            session_id=agent.conversation.session_id if agent.is_open else None,
        )

    def _charge(self) -> None:
        """Say what was used since it was last said, also by a turn that has not come to its end."""
        agent = self._agent
        if agent.is_open and (used := agent.meter.difference(agent.conversation.totals)):
            self._say("agent.usage", model=agent.conversation.model, **used)

    def _say(self, type: str, **data: object) -> None:
        self._wire.event(type, turn=self._agent.turn, **data)
