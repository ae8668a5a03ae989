"""Merges asynchronous generators."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from sandherd.concurrency import cancel_and_wait, run_until_first

ItemT = TypeVar("ItemT")


async def merge(sources: Sequence[AsyncGenerator[ItemT, None]]) -> AsyncGenerator[ItemT, None]:
    """Yield the items of all sources as they arrive. If a source fails, its error is raised. No source may end."""
    queue: asyncio.Queue[ItemT] = asyncio.Queue()

    async def pump(source: AsyncGenerator[ItemT, None]) -> None:
        async with aclosing(source):
            async for item in source:
                queue.put_nowait(item)

    pumping = asyncio.ensure_future(run_until_first(*(pump(source) for source in sources)))
    getting = asyncio.ensure_future(queue.get())
    try:
        while True:
            await asyncio.wait({pumping, getting}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                pumping.result()  # raises the error of a source
            yield getting.result()
            getting = asyncio.ensure_future(queue.get())
    finally:
        await cancel_and_wait([pumping, getting])
