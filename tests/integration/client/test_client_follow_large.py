"""Large, quiet and incomplete histories are followed to the end, and each part is requested once."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sandherd.client import EventFollower, Herd
from sandherd.client.events.gap_filler import FollowLimits
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.requests import ListEvents, ListLiveTasks
from sandherd.contracts.subjects import Principal
from tests.patience import PATIENCE

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TASK, SANDBOX = "task-one", "sbx-one"
Neighbours = Any


def remember(neighbours: Neighbours, count: int) -> None:
    """Store this number of the agent's messages in the history, without publishing them."""
    for n in range(count):
        agent_message = AgentMessage(content=f"line {n}", content_length=6)
        neighbours.stored.append(neighbours.envelope(f"/sandherd/sandbox/{SANDBOX}", n + 2, agent_message, SANDBOX))
    neighbours._numbers[f"sandbox/{SANDBOX}"] = count + 1


async def received(following: EventFollower) -> list[int]:
    """The numbers of the agent's events to the end."""
    return [event.sequence async for event in following if event.source.endswith(f"/sandbox/{SANDBOX}")]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_interrupted_history_is_not_read_from_the_beginning(client: Herd, neighbours: Neighbours) -> None:
    """A history that fails at every second page is continued from that page: each is requested at most twice."""
    await neighbours.begin()
    remember(neighbours, 5000)
    await neighbours.complete()
    requested: list[tuple[str | None, str | None]] = []

    def answer(request: ListEvents) -> Any:
        if request.task is None:
            return neighbours.events(request)
        requested.append((request.task, request.cursor))
        failing = len(requested) % 2 == 0
        return Problem(code=Code.UNAVAILABLE, message="too slow") if failing else neighbours.events(request)

    await neighbours.answer(Principal.EVENT_INGEST, ListEvents, answer)
    patience = FollowLimits(gap=20, silence=20, beginning=20, check=0.1, retry=0.02)
    async with client.follow(task=TASK, limits=patience) as following:
        assert await received(following) == list(range(1, 5003))
    assert max(requested.count(page) for page in requested) <= 2
    assert following.is_complete


async def test_many_gaps_are_given_up_together(client: Herd, neighbours: Neighbours) -> None:
    """Missing numbers in 100 places are each requested, but waited for together and not one by one."""
    await neighbours.begin()
    remember(neighbours, 300)
    neighbours.stored = [
        event for event in neighbours.stored if not event.source.endswith(SANDBOX) or event.sequence % 3 != 0
    ]
    await neighbours.complete()
    patience = FollowLimits(gap=1, silence=1, beginning=1, check=0.2, retry=0.02)
    async with client.follow(task=TASK, limits=patience) as following:
        numbers = await received(following)
    gaps = [request for request in neighbours.requested if isinstance(request, ListEvents) and request.limit == 1]
    assert numbers == [number for number in range(1, 303) if number % 3 != 0 or number > 301]
    assert len(following.missing) == 100
    assert len(gaps) <= 100 + 40


async def test_history_of_a_quiet_sandbox_is_read_at_growing_intervals(client: Herd, neighbours: Neighbours) -> None:
    """Without events the state is read as usual, and the history at doubling intervals."""
    await neighbours.begin()
    patience = FollowLimits(gap=20, silence=20, beginning=20, check=0.1, retry=0.02)
    async with client.follow(task=TASK, limits=patience) as following:
        reading = asyncio.create_task(received(following))
        await until(lambda: len(looks(neighbours)) >= 3)
        before = len(looks(neighbours)), len(rereads(neighbours))
        await until(lambda: len(looks(neighbours)) >= before[0] + 30)
        assert len(rereads(neighbours)) - before[1] <= 8
        await neighbours.complete()
        assert await reading == [1, 2]


async def test_event_lost_in_silence_is_recovered(client: Herd, neighbours: Neighbours) -> None:
    """An event that was lost in a long silence is shown before the end; the silence is counted from that event."""
    await neighbours.begin()
    patience = FollowLimits(gap=20, silence=20, beginning=20, check=0.05, retry=0.02)
    async with client.follow(task=TASK, limits=patience) as following:
        reading = asyncio.create_task(received(following))
        await until(lambda: len(looks(neighbours)) >= 20)
        await neighbours.chat("lost", received=False)
        count = len(rereads(neighbours))
        await until(lambda: len(rereads(neighbours)) > count)
        await neighbours.complete()
        assert await reading == [1, 2, 3]
    assert following.is_complete


def looks(neighbours: Neighbours) -> list[Any]:
    return [request for request in neighbours.requested if isinstance(request, ListLiveTasks)]


def rereads(neighbours: Neighbours) -> list[Any]:
    """The complete reads for lost events: each requests what services have published."""
    return [request for request in neighbours.requested if isinstance(request, ListEvents) and request.entity == TASK]
