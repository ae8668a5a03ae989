"""Enters and leaves blocking context managers in a thread, so that event-ingest stores events meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

ValueT = TypeVar("ValueT")


@asynccontextmanager
async def in_thread(manager: AbstractContextManager[ValueT]) -> AsyncIterator[ValueT]:
    """Yields what `manager` yields. The manager must not suppress errors of the block."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(manager.__exit__, None, None, None)
