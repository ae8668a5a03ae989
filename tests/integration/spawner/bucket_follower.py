"""Follows the buckets, as a running spawner does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spawner.live_state import LiveState


@asynccontextmanager
async def following(live: LiveState) -> AsyncIterator[None]:
    """Follow the buckets until the end of the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(live.follow())
        await live.read()
        yield
        task.cancel()
