"""Ending tasks for certain."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Final

_AGAIN: Final = 0.5


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these and wait until they have ended, however.

    They are cancelled again and again: `asyncio.wait_for` of Python 3.11, on which nats-py rests, swallows a
    cancellation that comes in the same moment as its result.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=_AGAIN)
        for task in done:
            # What it raised is not asked for, and asyncio need not complain that nobody has.
            _ = task.cancelled() or task.exception()


async def first_of(*running: Awaitable[object]) -> None:
    """Wait until one of them ends, end the others, and raise what the first has raised."""
    tasks = [asyncio.ensure_future(one) for one in running]
    done: set[asyncio.Future[object]] = set()
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(tasks)
    for task in done:
        task.result()
