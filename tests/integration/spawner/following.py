"""Keeping up with the buckets, as a running spawner does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandherd.bus.connection import Bus
from spawner.live_state import LiveState


@asynccontextmanager
async def following(live: LiveState, bus: Bus) -> AsyncIterator[None]:
    """Until the block's end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(index.follow(bus)) for index in (live.task_index, live.sandbox_index)]
        await asyncio.gather(live.task_index.complete.wait(), live.sandbox_index.complete.wait())
        yield
        for task in tasks:
            task.cancel()
