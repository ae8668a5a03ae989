"""The runs of an agent that goes round: a further turn of one that stays, a new run of one that ends."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from sandherd.contracts.delivery import InboxMessage
from sandherd_worker.continuous.hearing import Hearing
from sandherd_worker.continuous.turns import Turns
from sandherd_worker.emitter import now
from sandherd_worker.harnesses.base import CannotTakeError, Ended, Harness, check_in_time
from sandherd_worker.tasks import end_tasks
from sandherd_worker.toolchains import NoToolchainError

Make = Callable[[int, str], Harness]
"""The agent for this iteration, and what it is told of the one before. Raises `NoToolchainError` or `OSError`."""
Write = Callable[[str], InboxMessage]
"""What an agent that stays is told for its next iteration."""


class Runs:
    """All of them. What is said to the agent between two iterations waits for the next."""

    def __init__(
        self, make: Make, write: Write, hearing: Hearing, turns: Turns, clock: Callable[[], datetime] = now
    ) -> None:
        self._make, self._write, self._clock = make, write, clock
        self._hearing, self._turns = hearing, turns
        self._harness: Harness | None = None
        self._works = self._stopped = False
        self._over: str | None = None
        self._news = asyncio.Event()

    # --- an iteration

    async def work(self, iteration: int, feedback: str) -> Ended:
        """Go round once."""
        try:
            if self._harness is not None and self._harness.follows_up:
                return await self._turn(self._harness, feedback)
            return await self._run(iteration, feedback)
        finally:
            self._works = False

    async def _run(self, iteration: int, feedback: str) -> Ended:
        if self._harness is not None:
            await self._harness.ended()
        self._hearing.run_begins()
        self._turns.forget()
        try:
            harness = self._make(iteration, feedback)
        except (NoToolchainError, OSError) as error:
            return Ended(error_type="start", error=str(error))
        await harness.start()
        self._harness = harness
        self._begin()
        if self._stopped:
            await harness.stop(0)
        return await harness.done()

    async def _turn(self, harness: Harness, feedback: str) -> Ended:
        before = self._turns.over
        gone = asyncio.ensure_future(harness.ended())
        turn = asyncio.ensure_future(self._whole_turn(harness, feedback, before))
        try:
            await asyncio.wait([gone, turn], return_when=asyncio.FIRST_COMPLETED)
            return await self._gone(gone) if gone.done() or not harness.follows_up else turn.result()
        finally:
            await end_tasks([gone, turn])

    async def _gone(self, gone: "asyncio.Future[Ended]") -> Ended:
        ended = await gone
        if self._stopped:
            return Ended(error_type="stopped", error="it was stopped")
        if ended.error_type is None:
            return Ended(error_type="internal", error="the agent ended in the midst of its iteration")
        return ended

    async def _whole_turn(self, harness: Harness, feedback: str, before: int) -> Ended:
        try:
            await harness.inject(self._write(feedback))
        except CannotTakeError as error:
            return Ended(error_type="internal", error=f"the agent does not go on: {error}")
        self._begin()
        await self._turns.rest(before)
        fault = self._hearing.fault
        return Ended(error_type=None if fault is None else "internal", error=fault or "")

    def _begin(self) -> None:
        self._works = True
        self._tell()

    # --- what is asked of it from outside

    @property
    def follows_up(self) -> bool:
        """Whether the agent is still there."""
        return self._harness is not None and self._harness.follows_up

    async def inject(self, message: InboxMessage) -> None:
        """Give it a message, in this iteration or, where it takes none, in the next. Raises `CannotTakeError`."""
        while True:
            check_in_time(message, self._clock())
            harness, news = self._harness, self._news
            if harness is not None and (self._works or message.message_type == "approval"):
                if await self._gave(harness, message):
                    return
            elif self._over is not None:
                raise CannotTakeError(self._over)
            await news.wait()

    async def _gave(self, harness: Harness, message: InboxMessage) -> bool:
        """False if the run that it was for takes nothing, and the next one may."""
        try:
            with self._turns.giving():
                await harness.inject(message)
        except CannotTakeError:
            if harness.follows_up or self._over is not None:
                raise
            return False
        return True

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop what it is doing now."""
        if self._harness is not None:
            await self._harness.interrupt(message)

    async def stop(self, grace: float) -> None:
        """End the run that there is; a further one ends as it begins."""
        self._stopped = True
        if self._harness is not None:
            await self._harness.stop(grace)

    async def ended(self) -> None:
        """Wait until nothing of the agent is left."""
        if self._harness is not None:
            await self._harness.ended()

    def close(self, *, lingers: bool) -> None:
        """There is no further iteration. One that lingers still takes messages."""
        self._works = lingers and self.follows_up
        self._over = "the agent is done and takes no further message"
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
