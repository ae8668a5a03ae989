"""What is ended ends, even if a library swallows a cancellation."""

import asyncio
from typing import Any

import pytest

from sandherd.bus import together as module
from sandherd.bus.together import end, together


async def test_a_task_that_swallows_its_first_cancellation_is_ended_all_the_same(monkeypatch: Any) -> None:
    """As Python 3.11's `wait_for` does when its answer comes in the same turn."""
    monkeypatch.setattr(module, "AGAIN_AFTER", 0.01)
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
    await end([task])
    assert task.cancelled()
    assert swallowed == 3


async def test_the_first_that_fails_ends_the_others_and_is_raised() -> None:
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
        await together(goes_on(), fails(), goes_on())
    assert cleaned == [True, True]


async def test_one_that_is_cancelled_while_it_ends_others_ends_them_first() -> None:
    """Nothing is left behind, and the cancellation goes on."""
    cleaning, release = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await release.wait()

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end([task]))
    await cleaning.wait()
    ending.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.done()
