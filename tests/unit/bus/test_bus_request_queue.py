"""The next request of a lane, and a project's remaining budget."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from sandherd.contracts.requests import Reply
from sandherd.service.request_budget import Budget, Budgets
from sandherd.service.request_queue import RequestLane, RequestQueue
from sandherd.service.request_scheduler import RequestLimits, RequestScheduler


def lane(at_once: int = 4, per_project: int = 2) -> RequestLane:
    return RequestLane(name="any", at_once=at_once, per_project=per_project)


def test_another_project_waits_for_one_request_only() -> None:
    """With a thousand requests of one project waiting, that of another is the next to be processed."""
    queue: RequestQueue[str] = RequestQueue(lane(at_once=1, per_project=1), 1000)
    assert all(queue.offer("alpha", "", f"alpha-{place}") for place in range(1000))
    assert queue.take() == ("alpha", "alpha-0")
    assert queue.offer("beta", "", "beta-0")
    assert queue.take() is None
    queue.release("alpha")
    assert queue.take() == ("beta", "beta-0")


def test_project_never_exceeds_its_slots() -> None:
    """However many wait and complete, at most `per_project` of one project and `at_once` in all are processed."""
    queue: RequestQueue[int] = RequestQueue(lane(at_once=4, per_project=2), 100)
    running: Counter[str] = Counter()
    for place in range(100):
        for project in ("a", "b", "c"):
            queue.offer(project, "", place)
    for _ in range(500):
        while (taken := queue.take()) is not None:
            running[taken[0]] += 1
        assert max(running.values()) <= 2
        assert sum(running.values()) <= 4
        oldest = next((project for project, count in running.items() if count), None)
        if oldest is None:
            break
        queue.release(oldest)
        running[oldest] -= 1
    assert sum(queue.waiting(project) for project in ("a", "b", "c")) == 0


def test_busy_project_leaves_slots_for_others() -> None:
    """While one project has all of its slots, another is processed at once."""
    queue: RequestQueue[int] = RequestQueue(lane(at_once=4, per_project=2), 100)
    for place in range(10):
        queue.offer("alpha", "", place)
    assert [queue.take(), queue.take(), queue.take()] == [("alpha", 0), ("alpha", 1), None]
    queue.offer("beta", "", 0)
    assert queue.take() == ("beta", 0)


def test_waiting_requests_per_project_are_limited() -> None:
    """A request over a project's places is refused, and uses none of another's."""
    queue: RequestQueue[int] = RequestQueue(lane(), 3)
    assert [queue.offer("alpha", "", place) for place in range(5)] == [True, True, True, False, False]
    assert queue.offer("beta", "", 0)
    assert queue.waiting("alpha") == 3


def test_sandbox_is_limited_to_a_share_of_its_projects_places() -> None:
    """One sandbox has a quarter of its project's places, and the others take turns with it."""
    queue: RequestQueue[str] = RequestQueue(lane(at_once=10, per_project=10), 8)
    offered = [queue.offer("alpha", "sbx-loud", f"loud-{place}") for place in range(5)]
    assert offered == [True, True, False, False, False]
    assert queue.offer("alpha", "sbx-quiet", "quiet-0")
    assert [queue.take() for _ in range(3)] == [("alpha", "loud-0"), ("alpha", "quiet-0"), ("alpha", "loud-1")]


def test_abandoned_requests_are_removed() -> None:
    """Abandoned requests free their places, and the order of the others stays."""
    queue: RequestQueue[int] = RequestQueue(lane(), 4)
    for place in range(4):
        queue.offer("alpha", "", place)
    assert queue.remove("alpha", lambda place: place % 2 == 0) == [0, 2]
    assert queue.waiting("alpha") == 2
    assert queue.take() == ("alpha", 1)
    assert queue.clear() == [3]
    assert queue.take() is None


def test_budget_is_used_up_and_recovers() -> None:
    """A project that has used its minute's seconds waits until they recover; others do not."""
    budgets = Budgets(Budget(seconds=60, rows=1000))
    assert budgets.wait("alpha", 0) == 0
    budgets.spend("alpha", 90, 0, 0)
    assert budgets.wait("alpha", 0) == 30
    assert budgets.wait("alpha", 29) == 1
    assert budgets.wait("alpha", 31) == 0
    assert budgets.wait("beta", 0) == 0


def test_rows_count_like_seconds() -> None:
    """Cheap replies with many rows use the budget up, too."""
    budgets = Budgets(Budget(seconds=60, rows=1000))
    for _ in range(3):
        budgets.spend("alpha", 0.01, 1000, 0)
    assert budgets.wait("alpha", 0) == 120


def test_unused_budget_does_not_accumulate() -> None:
    """An hour of silence gives a project one minute's budget, not sixty."""
    budgets = Budgets(Budget(seconds=60, rows=1000))
    budgets.spend("alpha", 1, 1, 0)
    assert budgets.wait("alpha", 3600) == 0
    budgets.spend("alpha", 120, 0, 3600)
    assert budgets.wait("alpha", 3600) == 60


async def test_flood_of_requests_lets_the_rest_of_the_service_run() -> None:
    """The client library passes all requests that it has read without a pause, and a lease has to be renewed."""
    message: Any = SimpleNamespace(path={"project": "alpha", "sandbox": "sbx-1"}, headers={}, raw_message=None)
    scheduler = RequestScheduler(RequestLimits(10, Budget(60, 1000)), lambda *_reply: None)

    async def never(_message: Any) -> Reply[Any]:
        future: asyncio.Future[Reply[Any]] = asyncio.get_running_loop().create_future()
        return await future

    receive = scheduler.receiver(lane(), "any", never)
    await receive(message)  # the first one may pause: none was received before
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    for _ in range(100_000):
        await receive(message)
        if turns:
            break
    assert turns
    await scheduler.close()
