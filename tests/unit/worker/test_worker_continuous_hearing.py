"""What of an agent's words and costs counts for its iterations, and an iteration that has spent all."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sandherd.contracts.continuous import Continuous
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.events.agent import AgentError, AgentMessage, AgentTurnCompleted, AgentUsage
from sandherd_worker.continuous.hearing import Hearing
from sandherd_worker.continuous.rounds import Rounds
from sandherd_worker.continuous.runs import Runs
from sandherd_worker.continuous.turns import Turns
from sandherd_worker.harnesses.base import Ended


class Spender:
    """A run that spends, and ends only when it is stopped."""

    def __init__(self, hearing: Hearing, *, ends: bool) -> None:
        self._hearing, self._ends = hearing, ends
        self._done: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        await self._hearing.say(AgentUsage(cost_micro_usd=70))
        if self._ends:
            self._done.set_result(Ended())

    async def done(self) -> Ended:
        return await asyncio.shield(self._done)

    async def ended(self) -> Ended:
        return await self.done()

    @property
    def follows_up(self) -> bool:
        return False

    async def inject(self, message: InboxMessage) -> None:
        raise AssertionError(message)

    async def interrupt(self, message: str | None = None, /) -> None:
        return

    async def stop(self, grace: float) -> None:
        if not self._done.done():
            self._done.set_result(Ended(error_type="stopped", error=f"within {grace} s"))


def spending(listener: Any, *, ends: bool) -> Rounds:
    """An agent that may spend 100, and spends 70 in each iteration."""
    terms = Continuous(completion_signal="DONE", max_cost_micro_usd=100)
    hearing = Hearing(listener, "DONE", shown=False)

    def unwritten(feedback: str) -> InboxMessage:
        raise AssertionError(feedback)

    async def rested(turn: int) -> None:
        raise AssertionError(turn)

    runs = Runs(lambda number, _: Spender(hearing, ends=ends or number == 1), unwritten, hearing, Turns())
    return Rounds(terms, runs, hearing, None, listener, preview="do", lingers=False, rested=rested, spent=0.0)


async def test_an_iteration_that_has_spent_all_is_stopped(listener: Any) -> None:
    """In its midst; it counts as failed, and all that was spent is in the end."""
    rounds = spending(listener, ends=False)
    await rounds.start()
    ended = await rounds.done()
    assert (ended.error_type, ended.stop_reason, ended.used["cost_micro_usd"]) == (
        "limit_reached",
        "max_cost_reached",
        140,
    )
    said = [event for event in listener.events if event.type.startswith("agent.iteration")]
    assert [event.type.rpartition("_")[2] for event in said] == ["started", "completed", "started", "failed"]
    assert said[-1].error_type == "max_cost_reached"


async def test_an_iteration_that_tells_its_cost_at_its_end_is_done(listener: Any) -> None:
    """It is not stopped for what it says last; it is the last one all the same."""
    rounds = spending(listener, ends=True)
    await rounds.start()
    assert (await rounds.done()).stop_reason == "max_cost_reached"
    said = [event.type.rpartition("_")[2] for event in listener.events if event.type.startswith("agent.iteration")]
    assert said == ["started", "completed"] * 2


async def test_a_signal_is_found_across_pieces_of_output(listener: Any) -> None:
    """And only in its own iteration."""
    hearing = Hearing(listener, "ALL DONE", shown=True)
    for piece in ("it is AL", "L", " DONE", " now"):
        await hearing.show(piece)
    found = [hearing.signalled]
    hearing.begin()
    found.append(hearing.signalled)
    assert found == [True, False]
    await hearing.say(AgentMessage(content="ALL DONE", content_length=8))
    assert (hearing.signalled, hearing.words) == (True, "ALL DONE")


async def test_output_of_a_driver_is_no_signal(listener: Any) -> None:
    """It may print what it was told, and that holds the signal."""
    hearing = Hearing(listener, "DONE", shown=False)
    await hearing.show("DONE")
    assert (hearing.signalled, listener.output) == (False, "DONE")


async def test_only_an_error_that_ends_its_turn_is_a_fault(listener: Any) -> None:
    """One in its midst, after which the agent went on, is none."""
    hearing = Hearing(listener, None, shown=False)
    await hearing.say(AgentError(error="slow", phase="model"))
    await hearing.say(AgentTurnCompleted(turn=1, stop_reason="end_turn"))
    assert hearing.fault is None
    hearing.begin()
    await hearing.say(AgentError(error="away", phase="api_error"))
    await hearing.say(AgentTurnCompleted(turn=2, stop_reason="api_error"))
    assert hearing.fault == "away"


async def test_turns_of_several_runs_are_counted_on(listener: Any) -> None:
    """So that no two have the same number."""
    hearing = Hearing(listener, None, shown=False)
    for _ in range(2):
        hearing.run_begins()
        for turn in (1, 2):
            await hearing.say(AgentTurnCompleted(turn=turn))
    assert [event.turn for event in listener.events] == [1, 2, 3, 4]


async def test_turns_that_follow_at_once_are_one_rest(eventually: Callable[..., Awaitable[None]]) -> None:
    """The agent rests when the last of them is over, and nothing is on its way to it."""
    turns = Turns()
    resting = asyncio.create_task(turns.rest(turns.over))
    with turns.giving():
        for working in (True, False):
            turns.note(working=working)
    turns.note(working=True)
    assert not resting.done()
    turns.note(working=False)
    await eventually(resting.done, "it rests")
    assert turns.over == 2
