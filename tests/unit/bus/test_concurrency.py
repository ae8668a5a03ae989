"""Cancelled tasks end, even if a library swallows a cancellation; work on one key runs one at a time."""

import asyncio

import pytest

from sandherd import concurrency
from sandherd.concurrency import KeyedLocks, aligned_delay, both, cancel_and_wait, run_until_first


async def test_task_that_swallows_a_cancellation_is_ended() -> None:
    """Python 3.11's `wait_for` swallows one when its result comes in the same turn."""
    swallowed = 0

    async def deaf() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 2:
                    raise

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await cancel_and_wait([task], again_after=0.01)
    assert task.cancelled()
    assert swallowed == 3


async def test_first_failure_cancels_the_others_and_is_raised() -> None:
    """The others are cancelled, and have cleaned up before it is raised."""
    cleaned = []

    async def fails() -> None:
        raise ValueError("x")

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(ValueError, match="x"):
        await run_until_first(goes_on(), fails(), goes_on())
    assert cleaned == [True, True]


async def test_results_of_both_and_failure_of_one() -> None:
    """Both results are returned. If one fails, the other has cleaned up before that is raised."""
    cleaned = []

    async def result() -> int:
        return 1

    async def fails() -> None:
        raise ValueError("x")

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    assert await both(result(), result()) == (1, 1)
    with pytest.raises(ValueError, match="x"):
        await both(goes_on(), fails())
    assert cleaned == [True]


async def test_cancelled_cancellation_ends_its_tasks_first() -> None:
    """A task cancelled while it cancels others ends them before it ends itself."""
    cleaning, release = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await release.wait()

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    ending = asyncio.create_task(cancel_and_wait([task]))
    await cleaning.wait()
    ending.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.done()


async def test_error_of_cancelled_task_is_ignored() -> None:
    """A cancelled task reports its own error: nothing is raised, and asyncio logs nothing."""

    async def fails_to_clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("x")

    task = asyncio.create_task(fails_to_clean_up())
    await asyncio.sleep(0)
    await cancel_and_wait([task])
    assert isinstance(task.exception(), ValueError)


async def test_key_is_held_by_one_at_a_time_in_order() -> None:
    """Another key is not waited for, and unused locks are dropped."""
    locks: KeyedLocks[str] = KeyedLocks()
    order: list[str] = []

    async def work(key: str, name: str) -> None:
        async with locks.hold(key):
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    async with locks.hold("b"):
        await asyncio.gather(work("a", "first"), work("a", "second"), work("a", "third"))
    assert order == [f"{name} {what}" for name in ("first", "second", "third") for what in ("begins", "ends")]
    assert not locks._locks
    assert not locks._users


async def test_cancelled_waiter_does_not_block_the_others() -> None:
    """The lock passes to the next one."""
    locks: KeyedLocks[tuple[str, str]] = KeyedLocks()
    key = ("p", "s")

    async def hold() -> None:
        async with locks.hold(key):
            pass

    async with locks.hold(key):
        waiting, next_one = asyncio.create_task(hold()), asyncio.create_task(hold())
        await asyncio.sleep(0)
        await cancel_and_wait([waiting])
    await next_one
    assert not locks._locks


@pytest.mark.parametrize("interval", [0.5, 1, 5 / 3, 30])
async def test_periodic_tasks_wake_up_together(interval: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delay ends at a multiple of the interval, and is never short enough for a second run at the same multiple."""
    loop = asyncio.get_running_loop()
    for step in range(200):
        at = 1234.5 + step * interval / 77
        monkeypatch.setattr(loop, "time", lambda at=at: at)
        delay = aligned_delay(interval)
        assert interval / 4 <= delay <= interval * 5 / 4
        turns = (at + delay + concurrency._CLOCK_OFFSET) / interval
        assert turns == pytest.approx(round(turns), abs=1e-6)
    monkeypatch.undo()
