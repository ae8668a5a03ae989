"""Context managers that block, entered and left in a thread: event-ingest stores events meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

ValueT = TypeVar("ValueT")


@asynccontextmanager
async def in_thread(manager: AbstractContextManager[ValueT]) -> AsyncIterator[ValueT]:
    """What the manager yields. It has to pass errors on."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(manager.__exit__, None, None, None)
