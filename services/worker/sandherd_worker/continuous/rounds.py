"""The harness of an agent that goes round: iteration after iteration, until it is done or comes to a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sandherd.contracts.continuous import Continuous, StopReason
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.events import iteration as events
from sandherd_worker.continuous import telling
from sandherd_worker.continuous.deciding import (
    Cut,
    Failed,
    Happened,
    Judged,
    Next,
    State,
    Stop,
    Worked,
    after,
    begun,
    decide,
    time_left,
    too_dear,
)
from sandherd_worker.continuous.hearing import Hearing
from sandherd_worker.continuous.runs import Runs
from sandherd_worker.continuous.validating import Validator
from sandherd_worker.harnesses.base import Ended, Voice
from sandherd_worker.tasks import end_tasks

_PREVIEW: Final = 500
_GRACE: Final = 10.0
"""How long an agent that has come to a limit in the midst of its work may take to end, in seconds."""
_SPENT: Final = 5.0
"""How long an iteration that has spent all may go on, in seconds: what it cost is often told at its very end."""


class Rounds:
    """A `Harness` around the runs of another."""

    def __init__(  # noqa: PLR0913  # what it is made of
        self,
        terms: Continuous,
        runs: Runs,
        hearing: Hearing,
        validator: Validator | None,
        voice: Voice,
        *,
        preview: str,
        lingers: bool,
        rested: Callable[[int], Awaitable[None]],
        spent: float = _SPENT,
    ) -> None:
        self._terms, self._runs, self._hearing, self._validator, self._voice = terms, runs, hearing, validator, voice
        self._preview, self._lingers, self._rested, self._spent_grace = preview, lingers, rested, spent
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._state = State(began=loop.time())
        hearing.listen(self._spend)
        self._feedback = ""
        self._last = Ended()
        self._cut: asyncio.Future[StopReason] = loop.create_future()
        self._stopping = asyncio.Event()
        self._over = False
        self._spent_in = 0
        self._doing: asyncio.Task[Ended] | None = None

    # --- what the worker asks

    async def start(self) -> None:
        """Begin to go round."""
        self._state = State(began=self._now())
        self._doing = asyncio.create_task(self._go_round())
        self._doing.add_done_callback(lambda over: over.cancelled() or over.exception())

    async def done(self) -> Ended:
        """Wait until it goes round no more."""
        if self._doing is None:
            raise RuntimeError("it was not started")
        return await asyncio.shield(self._doing)

    async def ended(self) -> Ended:
        """Wait until nothing of the agent is left, too."""
        ended = await self.done()
        await self._runs.ended()
        return ended

    @property
    def going(self) -> bool:
        """Whether it goes round still."""
        return not self._over

    @property
    def follows_up(self) -> bool:
        """Whether the agent is still there."""
        return self._runs.follows_up

    async def inject(self, message: InboxMessage) -> None:
        """Give the agent a message, in this iteration or the next."""
        await self._runs.inject(message)

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop what the agent does now; it goes round all the same."""
        await self._runs.interrupt(message)

    async def stop(self, grace: float) -> None:
        """End the agent, and what judges its work."""
        self._stopping.set()
        self._cut_short("shutdown_signal")
        await self._runs.stop(grace)
        if self._doing is not None:
            await asyncio.wait([self._doing])

    # --- going round

    async def _go_round(self) -> Ended:
        try:
            verdict: Next = "go_on"
            while not isinstance(verdict, Stop):
                verdict = await self._iterate()
                if verdict == "validate" and self._validator is not None:
                    verdict = await self._validate(self._validator)
            ended = telling.conclude(self._terms, self._state, verdict.reason, self._last)
        finally:
            self._over = True
            self._runs.close(lingers=self._lingers)
        if self.follows_up:
            await self._rested(self._hearing.turns)
        return self._with_facts(ended)

    async def _iterate(self) -> Next:
        self._state = begun(self._state)
        self._hearing.begin()
        await self._say(events.AgentIterationStarted, prompt_preview=(self._feedback or self._preview)[:_PREVIEW])
        ended, cut = await self._within_limits()
        self._last = replace(ended, session_id=ended.session_id or self._last.session_id)
        words = self._hearing.words or ended.final_output
        if cut is not None:
            verdict = self._then(Cut(cut))
            await self._fail(telling.cut_short(self._terms, cut), cut)
        elif ended.error_type is not None:
            verdict = self._then(Failed())
            await self._fail(ended.error, ended.error_type)
            self._feedback = telling.failed(ended)
        else:
            verdict = self._then(Worked(self._hearing.signalled))
            preview = None if words is None else words[-_PREVIEW:]
            await self._say(events.AgentIterationCompleted, cost_micro_usd=self._hearing.cost, output_preview=preview)
            self._feedback = telling.not_said()
        return verdict

    async def _fail(self, error: str, error_type: str) -> None:
        await self._say(events.AgentIterationFailed, error=error, error_type=error_type)

    async def _validate(self, validator: Validator) -> Next:
        found = await validator.run(self._hearing.turns, self._stopping)
        verdict = self._then(Judged(found.passed))
        if not found.passed:
            self._feedback = telling.not_valid(self._terms, found)
        await self._say(
            events.AgentIterationValidated,
            passed=found.passed,
            feedback=None if found.passed else self._feedback,
            errors=[] if found.passed else [found.why],
            stop_reason=verdict.reason if isinstance(verdict, Stop) else None,
        )
        return verdict

    def _then(self, happened: Happened) -> Next:
        """Note what has happened, and decide. To be told to end is no limit: what is done by then is done."""
        cost = self._hearing.totals["cost_micro_usd"]
        self._state = after(replace(self._state, cost=cost), happened)
        verdict = decide(self._terms, self._state, happened, self._now())
        if self._stopping.is_set() and verdict in {"go_on", "validate"}:
            return Stop("shutdown_signal")
        return verdict

    # --- limits

    async def _within_limits(self) -> tuple[Ended, StopReason | None]:
        """Let the agent work; says why it was stopped in its midst, if it was."""
        loop, left = asyncio.get_running_loop(), time_left(self._terms, self._state, self._now())
        alarm = None if left is None else loop.call_later(left, self._cut_short, "max_duration_reached")
        work = asyncio.create_task(self._runs.work(self._state.iteration, self._feedback))
        try:
            either: list[asyncio.Future[Any]] = [work, self._cut]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._runs.stop(_GRACE)
            ended = await work
        finally:
            if alarm is not None:
                alarm.cancel()
            await end_tasks([work])
        return ended, self._cut.result() if self._cut.done() and ended.error_type == "stopped" else None

    def _spend(self, total: int) -> None:
        """So much has been spent."""
        iteration = self._state.iteration
        if too_dear(self._terms, total) and self._spent_in < iteration:
            self._spent_in = iteration
            asyncio.get_running_loop().call_later(self._spent_grace, partial(self._spent_all, iteration))

    def _spent_all(self, iteration: int) -> None:
        if iteration == self._state.iteration and not self._over:
            self._cut_short("max_cost_reached")

    def _cut_short(self, reason: StopReason) -> None:
        with suppress(asyncio.InvalidStateError):
            self._cut.set_result(reason)

    # --- what is said

    async def _say(self, event: type[events.Iteration], **fields: Any) -> None:
        state = self._state
        facts = {
            "turn": self._hearing.turns,
            "iteration_num": state.iteration,
            "successful_iterations": state.successful,
            "error_count": state.errors,
            "total_cost_micro_usd": self._hearing.totals["cost_micro_usd"],
            "completion_signal_count": state.signals,
            "elapsed_seconds": self._now() - state.began,
            "last_session_id": self._last.session_id,
            "validation_passed": state.valid,
        }
        await self._voice.say(event.model_validate({**facts, **fields}))

    def _with_facts(self, ended: Ended) -> Ended:
        return replace(
            ended,
            turns=max(1, self._hearing.turns),
            exit_code=self._last.exit_code if ended.error_type == self._last.error_type else None,
            signal=self._last.signal if ended.error_type == self._last.error_type else None,
            final_output=self._hearing.words or self._last.final_output,
            session_id=self._last.session_id,
            used=self._hearing.totals,
        )
