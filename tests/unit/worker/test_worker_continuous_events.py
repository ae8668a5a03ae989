"""Which of an agent's events and costs count for its iterations, and the cost limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sandherd.contracts.continuous import Continuous
from sandherd.contracts.events.agent import AgentError, AgentTurnCompleted, AgentTurnStarted, AgentUsage, TurnOrigin
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.continuous.iteration_events import IterationEvents
from sandherd_worker.continuous.iterations import IterationLoop
from sandherd_worker.continuous.runs import IterationRuns, IterationTurns
from sandherd_worker.harnesses.base import AgentEnd


class Spender:
    """A run that spends, and ends only when it is stopped."""

    def __init__(self, hearing: IterationEvents, *, ends: bool) -> None:
        self._hearing, self._ends = hearing, ends
        self._done: asyncio.Future[AgentEnd] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        await self._hearing.publish(AgentUsage(cost_micro_usd=70))
        if self._ends:
            self._done.set_result(AgentEnd())

    async def wait_done(self) -> AgentEnd:
        return await asyncio.shield(self._done)

    async def ended(self) -> AgentEnd:
        return await self.wait_done()

    @property
    def follows_up(self) -> bool:
        return False

    async def inject(self, message: InboxMessage) -> None:
        raise AssertionError(message)

    async def interrupt(self, message: str | None = None, /) -> None:
        return

    async def stop(self, grace: float) -> None:
        if not self._done.done():
            self._done.set_result(AgentEnd(error_type="stopped", error=f"within {grace} s"))


def spending(listener: Any, *, ends: bool) -> IterationLoop:
    """An agent that may spend 100, and spends 70 in each iteration."""
    terms = Continuous(completion_signal="DONE", max_cost_micro_usd=100)
    hearing = IterationEvents(listener, "DONE", search_output=False)

    def unwritten(feedback: str) -> InboxMessage:
        raise AssertionError(feedback)

    async def rested(turn: int) -> None:
        raise AssertionError(turn)

    runs = IterationRuns(
        lambda number, _: Spender(hearing, ends=ends or number == 1), unwritten, hearing, IterationTurns()
    )
    return IterationLoop(terms, runs, hearing, None, listener, preview="do", lingers=False, rested=rested, spent=0.0)


async def test_iteration_that_exceeds_the_cost_is_stopped(listener: Any) -> None:
    """The stopped iteration counts as failed, and its cost is in the result."""
    rounds = spending(listener, ends=False)
    await rounds.start()
    ended = await rounds.wait_done()
    assert (ended.error_type, ended.stop_reason, ended.used["cost_micro_usd"]) == (
        "limit_reached",
        "max_cost_reached",
        140,
    )
    published = [event for event in listener.events if event.type.startswith("agent.iteration")]
    assert [event.type.rpartition("_")[2] for event in published] == ["started", "completed", "started", "failed"]
    assert published[-1].error_type == "max_cost_reached"


async def test_iteration_that_reports_cost_at_its_end_is_completed(listener: Any) -> None:
    """An iteration is not stopped for its last report, but no other one follows."""
    rounds = spending(listener, ends=True)
    await rounds.start()
    assert (await rounds.wait_done()).stop_reason == "max_cost_reached"
    published = [event.type.rpartition("_")[2] for event in listener.events if event.type.startswith("agent.iteration")]
    assert published == ["started", "completed"] * 2


async def test_signal_is_found_across_pieces_of_output(listener: Any) -> None:
    """The signal is found across pieces, but not across two iterations."""
    hearing = IterationEvents(listener, "ALL DONE", search_output=True)
    for piece in ("it is AL", "L", " DONE", " now"):
        await hearing.show(piece)
    found = [hearing.signalled]
    hearing.start_iteration()
    found.append(hearing.signalled)
    assert found == [True, False]
    await hearing.publish(AgentMessage(content="ALL DONE", content_length=8))
    assert (hearing.signalled, hearing.last_message) == (True, "ALL DONE")


async def test_printed_signal_is_ignored(listener: Any) -> None:
    """A driver's output that contains the signal, as an echo of its prompt does, is no signal."""
    hearing = IterationEvents(listener, "DONE", search_output=False)
    await hearing.show("DONE")
    assert (hearing.signalled, listener.output) == (False, "DONE")


async def test_only_an_error_that_ends_its_turn_is_a_fault(listener: Any) -> None:
    """An error after which the agent continues is not a fault."""
    hearing = IterationEvents(listener, None, search_output=False)
    await hearing.publish(AgentError(error="slow", phase="model"))
    await hearing.publish(AgentTurnCompleted(turn=1, stop_reason="end_turn"))
    assert hearing.fault is None
    hearing.start_iteration()
    await hearing.publish(AgentError(error="away", phase="api_error"))
    await hearing.publish(AgentTurnCompleted(turn=2, stop_reason="api_error"))
    assert hearing.fault == "away"


async def test_turns_of_several_runs_are_numbered_on(listener: Any) -> None:
    """Turns of different runs never have the same number."""
    hearing = IterationEvents(listener, None, search_output=False)
    for _ in range(2):
        hearing.start_run()
        for turn in (1, 2):
            await hearing.publish(AgentTurnCompleted(turn=turn))
    assert [event.turn for event in listener.events] == [1, 2, 3, 4]


async def test_consecutive_turns_are_one_rest(eventually: Callable[..., Awaitable[None]]) -> None:
    """The agent rests when the last turn is over and no message is being delivered."""
    turns = IterationTurns()
    resting = asyncio.create_task(turns.rest(turns.over))
    with turns.delivering():
        for working in (True, False):
            turns.note(working=working)
    turns.note(working=True)
    assert not resting.done()
    turns.note(working=False)
    await eventually(resting.done, "it rests")
    assert turns.over == 2


async def test_prompts_of_later_runs_are_those_of_iterations(listener: Any) -> None:
    """The first run begins with the task, each later one with its text and feedback; other turns keep their origin."""
    events = IterationEvents(listener, None, search_output=False)
    origins: list[TurnOrigin] = ["task", "notice", "task", "user"]
    for turn, origin in zip((1, 2, 1, 2), origins, strict=True):
        if turn == 1:
            events.start_run()
        await events.publish(AgentTurnStarted(turn=turn, origin=origin))
    assert [(event.turn, event.origin) for event in listener.events] == [
        *((1, "task"), (2, "notice"), (3, "iteration"), (4, "user"))
    ]
