"""Merges asynchronous generators."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from sandherd.concurrency import cancel_and_wait, run_until_first

ItemT = TypeVar("ItemT")


async def merged(sources: Sequence[AsyncGenerator[ItemT, None]]) -> AsyncGenerator[ItemT, None]:
    """Yield the items of all sources as they arrive. If a source fails, its error is raised."""
    queue: asyncio.Queue[ItemT] = asyncio.Queue()

    async def pump(source: AsyncGenerator[ItemT, None]) -> None:
        async with aclosing(source):
            async for one in source:
                queue.put_nowait(one)

    pumping = asyncio.ensure_future(run_until_first(*(pump(source) for source in sources)))
    getting = asyncio.ensure_future(queue.get())
    try:
        while True:
            await asyncio.wait({pumping, getting}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                pumping.result()  # raises: a source ends only by an error
            yield getting.result()
            getting = asyncio.ensure_future(queue.get())
    finally:
        await cancel_and_wait([pumping, getting])
