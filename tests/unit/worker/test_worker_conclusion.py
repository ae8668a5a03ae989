"""When a driver's task is done: its result counts when no message is being delivered."""

import asyncio
from contextlib import suppress

import pytest

from sandherd_worker.harnesses import conclusion
from sandherd_worker.harnesses.base import AgentEnd, MessageRefusedError
from sandherd_worker.harnesses.conclusion import Conclusion
from tests.patience import PATIENCE


@pytest.fixture
def concluded() -> list[AgentEnd]:
    return []


@pytest.fixture
def conclusion_of(concluded: list[AgentEnd]) -> Conclusion:
    return Conclusion(concluded.append)


async def test_first_result_counts_at_once(conclusion_of: Conclusion, concluded: list[AgentEnd]) -> None:
    """The first result is final, whether the driver reports itself idle before it or after it."""
    first = AgentEnd(error="1")
    conclusion_of.turn(working=True)
    conclusion_of.result(first)
    conclusion_of.turn(working=False)
    conclusion_of.result(AgentEnd(error="2"))
    assert set(map(id, concluded)) == {id(first)}


async def test_message_being_delivered_delays_the_conclusion(
    conclusion_of: Conclusion, concluded: list[AgentEnd]
) -> None:
    """A message that the driver accepts is another turn, and the task is done after it."""
    with conclusion_of.delivering():
        conclusion_of.result(AgentEnd())
        assert concluded == []
    assert concluded == []
    conclusion_of.turn(working=True)
    assert concluded == []
    conclusion_of.turn(working=False)
    assert concluded == [AgentEnd()]


async def test_refused_message_makes_no_turn(conclusion_of: Conclusion, concluded: list[AgentEnd]) -> None:
    """A refused message does not change the task's conclusion."""
    conclusion_of.turn(working=True)
    with suppress(MessageRefusedError), conclusion_of.delivering():
        conclusion_of.result(AgentEnd())
        raise MessageRefusedError
    assert concluded == [AgentEnd()]


async def test_turn_that_does_not_begin_is_not_waited_for(
    conclusion_of: Conclusion, concluded: list[AgentEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that accepts a message and does nothing, or has ended, keeps no task open."""
    monkeypatch.setattr(conclusion, "_TURN_START_SECONDS", 0.01)
    with conclusion_of.delivering():
        conclusion_of.result(AgentEnd())
    async with asyncio.timeout(PATIENCE):
        while not concluded:
            await asyncio.sleep(0.005)


async def test_closed_conclusion_keeps_the_last_result(conclusion_of: Conclusion, concluded: list[AgentEnd]) -> None:
    """The last result of a driver that ended is the conclusion."""
    with conclusion_of.delivering():
        conclusion_of.result(AgentEnd())
        conclusion_of.close()
        assert concluded
