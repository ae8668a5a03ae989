"""When a driver's task is done: what it says counts when nothing is on its way to it."""

import asyncio
from contextlib import suppress

import pytest

from sandherd_worker.harnesses import conclusion
from sandherd_worker.harnesses.base import CannotTakeError, Ended
from sandherd_worker.harnesses.conclusion import Conclusion
from tests.patience import PATIENCE


@pytest.fixture
def concluded() -> list[Ended]:
    return []


@pytest.fixture
def conclusion_of(concluded: list[Ended]) -> Conclusion:
    return Conclusion(concluded.append)


async def test_a_result_counts_at_once_and_the_first_one(conclusion_of: Conclusion, concluded: list[Ended]) -> None:
    """Whether the driver says before it or after it that it is idle."""
    first = Ended(error="1")
    conclusion_of.turn(working=True)
    conclusion_of.result(first)
    conclusion_of.turn(working=False)
    conclusion_of.result(Ended(error="2"))
    assert set(map(id, concluded)) == {id(first)}


async def test_a_message_on_its_way_makes_it_wait(conclusion_of: Conclusion, concluded: list[Ended]) -> None:
    """A message that the driver takes is another turn, and the task is done after it."""
    with conclusion_of.giving():
        conclusion_of.result(Ended())
        assert concluded == []
    assert concluded == []
    conclusion_of.turn(working=True)
    assert concluded == []
    conclusion_of.turn(working=False)
    assert concluded == [Ended()]


async def test_a_message_that_is_not_taken_makes_no_turn(conclusion_of: Conclusion, concluded: list[Ended]) -> None:
    """The task is done as it was."""
    conclusion_of.turn(working=True)
    with suppress(CannotTakeError), conclusion_of.giving():
        conclusion_of.result(Ended())
        raise CannotTakeError
    assert concluded == [Ended()]


async def test_a_turn_that_does_not_begin_is_not_waited_for(
    conclusion_of: Conclusion, concluded: list[Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that takes a message and does nothing with it keeps no task open; nor does one that is gone."""
    monkeypatch.setattr(conclusion, "_A_TURN_BEGINS", 0.01)
    with conclusion_of.giving():
        conclusion_of.result(Ended())
    async with asyncio.timeout(PATIENCE):
        while not concluded:
            await asyncio.sleep(0.005)


async def test_a_driver_that_is_gone_gets_nothing_more(conclusion_of: Conclusion, concluded: list[Ended]) -> None:
    """What it has said holds."""
    with conclusion_of.giving():
        conclusion_of.result(Ended())
        conclusion_of.close()
        assert concluded
