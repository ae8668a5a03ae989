"""The harness of an agent that works in iterations, until its work is done or a limit is reached."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.continuous import Continuous, StopReason
from sandherd.contracts.events import iteration as events
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.continuous import prompts
from sandherd_worker.continuous.iteration_events import IterationEvents
from sandherd_worker.continuous.iteration_rules import (
    Happened,
    IterationFailed,
    IterationInterrupted,
    IterationResult,
    IterationState,
    Next,
    StopIterations,
    WorkValidated,
    after,
    cost_limit_reached,
    decide,
    next_iteration,
    time_left,
)
from sandherd_worker.continuous.runs import IterationRuns
from sandherd_worker.continuous.validation import Validator
from sandherd_worker.harnesses.base import AgentEnd, EventSink

_PREVIEW_CHARS: Final = 500
_GRACE: Final = 10.0
"""How long an agent that is stopped at a limit may take to end, in seconds."""
_COST_GRACE: Final = 5.0
"""How long an iteration may continue at the cost limit, in seconds. The cost is often reported just before its end."""


class IterationLoop:
    """A `Harness` that runs another harness in iterations."""

    def __init__(  # noqa: PLR0913  # its parts
        self,
        terms: Continuous,
        runs: IterationRuns,
        iteration_events: IterationEvents,
        validator: Validator | None,
        sink: EventSink,
        *,
        preview: str,
        lingers: bool,
        rested: Callable[[int], Awaitable[None]],
        spent: float = _COST_GRACE,
    ) -> None:
        """`rested`: called with the last turn when an agent that still runs is done. `spent`: see `_COST_GRACE`."""
        self._terms, self._runs, self._validator, self._sink = terms, runs, validator, sink
        self._iteration_events = iteration_events
        self._preview, self._lingers, self._rested, self._cost_grace = preview, lingers, rested, spent
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._state = IterationState(began=loop.time())
        iteration_events.on_cost(self._on_cost)
        self._feedback = ""
        self._last = AgentEnd()
        self._cut: asyncio.Future[StopReason] = loop.create_future()
        self._stopping = asyncio.Event()
        self._over = False
        self._cost_alarm_of = 0
        self._loop_task: asyncio.Task[AgentEnd] | None = None

    # --- called by the worker

    async def start(self) -> None:
        """Start the iterations."""
        self._state = IterationState(began=self._now())
        self._loop_task = asyncio.create_task(self._loop())
        self._loop_task.add_done_callback(lambda over: over.cancelled() or over.exception())

    async def wait_done(self) -> AgentEnd:
        """Wait until there is no further iteration."""
        if self._loop_task is None:
            raise RuntimeError("it was not started")
        return await asyncio.shield(self._loop_task)

    async def ended(self) -> AgentEnd:
        """Wait until there is no further iteration, and no process of the agent is left."""
        ended = await self.wait_done()
        await self._runs.ended()
        return ended

    @property
    def is_running(self) -> bool:
        """Whether the iterations are still running."""
        return not self._over

    @property
    def follows_up(self) -> bool:
        """Whether the agent still runs."""
        return self._runs.follows_up

    async def inject(self, message: InboxMessage) -> None:
        """Pass a message to the agent, in this iteration or the next."""
        await self._runs.inject(message)

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop the agent's current turn; the iterations continue."""
        await self._runs.interrupt(message)

    async def stop(self, grace: float) -> None:
        """End the agent, and a running validation."""
        self._stopping.set()
        self._cut_short("shutdown_signal")
        await self._runs.stop(grace)
        if self._loop_task is not None:
            await asyncio.wait([self._loop_task])

    # --- iterating

    async def _loop(self) -> AgentEnd:
        try:
            verdict: Next = "go_on"
            while not isinstance(verdict, StopIterations):
                verdict = await self._iterate()
                if verdict == "validate" and self._validator is not None:
                    verdict = await self._validate(self._validator)
            ended = prompts.conclude(self._terms, self._state, verdict.reason, self._last)
        finally:
            self._over = True
            self._runs.close(lingers=self._lingers)
        if self.follows_up:
            await self._rested(self._iteration_events.turns)
        return self._with_facts(ended)

    async def _iterate(self) -> Next:
        self._state = next_iteration(self._state)
        self._iteration_events.start_iteration()
        await self._publish(
            events.AgentIterationStarted, prompt_preview=(self._feedback or self._preview)[:_PREVIEW_CHARS]
        )
        ended, cut = await self._within_limits()
        self._last = replace(ended, session_id=ended.session_id or self._last.session_id)
        output = self._iteration_events.last_message or ended.final_output
        if cut is not None:
            verdict = self._apply(IterationInterrupted(cut))
            await self._fail(prompts.cut_short(self._terms, cut), cut)
        elif ended.error_type is not None:
            verdict = self._apply(IterationFailed())
            await self._fail(ended.error, ended.error_type)
            self._feedback = prompts.failed(ended)
        else:
            verdict = self._apply(IterationResult(self._iteration_events.signalled))
            preview = None if output is None else output[-_PREVIEW_CHARS:]
            await self._publish(
                events.AgentIterationCompleted, cost_micro_usd=self._iteration_events.cost, output_preview=preview
            )
            self._feedback = prompts.missing_signal()
        return verdict

    async def _fail(self, error: str, error_type: str) -> None:
        await self._publish(events.AgentIterationFailed, error=error, error_type=error_type)

    async def _validate(self, validator: Validator) -> Next:
        result = await validator.run(self._iteration_events.turns, self._stopping)
        verdict = self._apply(WorkValidated(result.passed))
        if not result.passed:
            self._feedback = prompts.not_valid(self._terms, result)
        await self._publish(
            events.AgentIterationValidated,
            passed=result.passed,
            feedback=None if result.passed else self._feedback,
            errors=[] if result.passed else [result.why],
            stop_reason=verdict.reason if isinstance(verdict, StopIterations) else None,
        )
        return verdict

    def _apply(self, happened: Happened) -> Next:
        """Update the state, and decide on the next step. After a stop request, completed work still counts."""
        cost = self._iteration_events.totals["cost_micro_usd"]
        self._state = after(replace(self._state, cost=cost), happened)
        verdict = decide(self._terms, self._state, happened, self._now())
        if self._stopping.is_set() and verdict in {"go_on", "validate"}:
            return StopIterations("shutdown_signal")
        return verdict

    # --- limits

    async def _within_limits(self) -> tuple[AgentEnd, StopReason | None]:
        """Run the agent; returns its end, and the reason if it was stopped because of a limit or a stop request."""
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
            await cancel_and_wait([work], again_after=SHORT_CLEANUP_SECONDS)
        return ended, self._cut.result() if self._cut.done() and ended.error_type == "stopped" else None

    def _on_cost(self, total: int) -> None:
        """Stop the iteration after `_COST_GRACE` if this total cost has reached the limit."""
        iteration = self._state.iteration
        if cost_limit_reached(self._terms, total) and self._cost_alarm_of < iteration:
            self._cost_alarm_of = iteration
            asyncio.get_running_loop().call_later(self._cost_grace, partial(self._stop_for_cost, iteration))

    def _stop_for_cost(self, iteration: int) -> None:
        if iteration == self._state.iteration and not self._over:
            self._cut_short("max_cost_reached")

    def _cut_short(self, reason: StopReason) -> None:
        with suppress(asyncio.InvalidStateError):
            self._cut.set_result(reason)

    # --- events

    async def _publish(self, event: type[events.Iteration], **fields: Any) -> None:
        state = self._state
        facts = {
            "turn": self._iteration_events.turns,
            "iteration_num": state.iteration,
            "successful_iterations": state.successful,
            "error_count": state.errors,
            "total_cost_micro_usd": self._iteration_events.totals["cost_micro_usd"],
            "completion_signal_count": state.signals,
            "elapsed_seconds": self._now() - state.began,
            "last_session_id": self._last.session_id,
            "validation_passed": state.valid,
        }
        await self._sink.publish(event.model_validate({**facts, **fields}))

    def _with_facts(self, ended: AgentEnd) -> AgentEnd:
        return replace(
            ended,
            turns=max(1, self._iteration_events.turns),
            exit_code=self._last.exit_code if ended.error_type == self._last.error_type else None,
            signal=self._last.signal if ended.error_type == self._last.error_type else None,
            final_output=self._iteration_events.last_message or self._last.final_output,
            session_id=self._last.session_id,
            used=self._iteration_events.totals,
        )
