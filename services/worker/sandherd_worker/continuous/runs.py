"""The runs of an agent that works in iterations: a further turn if it keeps running, otherwise a new run."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.continuous.iteration_events import IterationEvents
from sandherd_worker.emitter import now
from sandherd_worker.harnesses.base import AgentEnd, Harness, MessageRefusedError, check_in_time
from sandherd_worker.toolchains import NoToolchainError

_TURN_START_SECONDS: Final = 5.0
"""How long a turn may take to begin after the agent has taken its message."""
_NEXT_TURN_SECONDS: Final = 0.1
"""How long after a turn another turn of the same iteration may begin, for a message that was sent meanwhile."""


class IterationTurns:
    """Tracks each turn's start and end."""

    def __init__(self) -> None:
        self.over = 0
        """How many turns have ended."""
        self._working = False
        self._deliveries = 0
        """How many messages are on their way to the agent."""
        self._changed = asyncio.Event()

    def note(self, *, working: bool) -> None:
        """Note that a turn has begun or ended."""
        self.over += self._working and not working
        self._working = working
        self._notify()

    def reset(self) -> None:
        """Reset for a new run of the agent, which has no turn yet."""
        self._working = False

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """A context in which a message is on its way to the agent."""
        self._deliveries += 1
        try:
            yield
        finally:
            self._deliveries -= 1
            self._notify()

    async def rest(self, before: int) -> None:
        """Wait until more than `before` turns have ended, none is running, and no message is on its way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TURN_START_SECONDS):
                while self.over == before and not self._working:
                    await self._changed.wait()
        while not await self._wait_idle():
            pass

    async def _wait_idle(self) -> bool:
        """Wait until no turn is running. False if another turn has begun meanwhile."""
        while self._working or self._deliveries:
            await self._changed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_NEXT_TURN_SECONDS):
                await self._changed.wait()
                return False
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


Make = Callable[[int, str], Harness]
"""Creates the agent for an iteration, with feedback on the last iteration. Raises `NoToolchainError` or `OSError`."""
Write = Callable[[str], InboxMessage]
"""Creates the message for the next iteration of an agent that keeps running."""


class IterationRuns:
    """All runs of one agent. Messages that are received between two iterations wait for the next one."""

    def __init__(
        self,
        make: Make,
        write: Write,
        iteration_events: IterationEvents,
        turns: IterationTurns,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._make, self._write, self._clock = make, write, clock
        self._iteration_events, self._turns = iteration_events, turns
        self._harness: Harness | None = None
        self._takes_messages = self._stopped = False
        self._over: str | None = None
        self._changed = asyncio.Event()

    # --- an iteration

    async def work(self, iteration: int, feedback: str) -> AgentEnd:
        """Run one iteration."""
        try:
            if self._harness is not None and self._harness.follows_up:
                return await self._turn(self._harness, feedback)
            return await self._run(iteration, feedback)
        finally:
            self._takes_messages = False

    async def _run(self, iteration: int, feedback: str) -> AgentEnd:
        if self._harness is not None:
            await self._harness.ended()
        self._iteration_events.start_run()
        self._turns.reset()
        try:
            harness = self._make(iteration, feedback)
        except (NoToolchainError, OSError) as error:
            return AgentEnd(error_type="start", error=str(error))
        await harness.start()
        self._harness = harness
        self._mark_running()
        if self._stopped:
            await harness.stop(0)
        return await harness.wait_done()

    async def _turn(self, harness: Harness, feedback: str) -> AgentEnd:
        before = self._turns.over
        ending = asyncio.ensure_future(harness.ended())
        turn = asyncio.ensure_future(self._complete_turn(harness, feedback, before))
        try:
            await asyncio.wait([ending, turn], return_when=asyncio.FIRST_COMPLETED)
            return await self._end_of(ending) if ending.done() or not harness.follows_up else turn.result()
        finally:
            await cancel_and_wait([ending, turn], again_after=SHORT_CLEANUP_SECONDS)

    async def _end_of(self, ending: "asyncio.Future[AgentEnd]") -> AgentEnd:
        ended = await ending
        if self._stopped:
            return AgentEnd(error_type="stopped", error="it was stopped")
        if ended.error_type is None:
            return AgentEnd(error_type="internal", error="the agent ended before its iteration was completed")
        return ended

    async def _complete_turn(self, harness: Harness, feedback: str, before: int) -> AgentEnd:
        try:
            await harness.inject(self._write(feedback))
        except MessageRefusedError as error:
            return AgentEnd(error_type="internal", error=f"the agent did not take the next prompt: {error}")
        self._mark_running()
        await self._turns.rest(before)
        fault = self._iteration_events.fault
        return AgentEnd(error_type=None if fault is None else "internal", error=fault or "")

    def _mark_running(self) -> None:
        self._takes_messages = True
        self._notify()

    # --- called from outside

    @property
    def follows_up(self) -> bool:
        """Whether the agent still runs."""
        return self._harness is not None and self._harness.follows_up

    async def inject(self, message: InboxMessage) -> None:
        """Pass a message to the agent in this iteration or, if it takes none now, in the next one.

        Raises `MessageRefusedError`.
        """
        while True:
            check_in_time(message, self._clock())
            harness, news = self._harness, self._changed
            if harness is not None and (self._takes_messages or message.message_type == "approval"):
                if await self._inject(harness, message):
                    return
            elif self._over is not None:
                raise MessageRefusedError(self._over)
            await news.wait()

    async def _inject(self, harness: Harness, message: InboxMessage) -> bool:
        """Pass a message to the current run. False if this run has ended, so that the next may take the message."""
        try:
            with self._turns.delivering():
                await harness.inject(message)
        except MessageRefusedError:
            if harness.follows_up or self._over is not None:
                raise
            return False
        return True

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop the agent's current turn."""
        if self._harness is not None:
            await self._harness.interrupt(message)

    async def stop(self, grace: float) -> None:
        """End the current run. A later run is ended as soon as it has started."""
        self._stopped = True
        if self._harness is not None:
            await self._harness.stop(grace)

    async def ended(self) -> None:
        """Wait until no process of the agent is left."""
        if self._harness is not None:
            await self._harness.ended()

    def close(self, *, lingers: bool) -> None:
        """End the iterations. An agent that lingers still takes messages."""
        self._takes_messages = lingers and self.follows_up
        self._over = "the agent is done and takes no further messages"
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
