"""Keeping up with the buckets, as a running spawner does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spawner.live_state import LiveState


@asynccontextmanager
async def following(live: LiveState) -> AsyncIterator[None]:
    """Until the block's end."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(live.follow())
        await live.read()
        yield
        task.cancel()
