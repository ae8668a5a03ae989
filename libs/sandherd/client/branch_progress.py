"""Waits until a branch has a wanted state: requests it after each event, and regularly because events may be missed."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sandherd.client.connection import Connection
from sandherd.client.events.change_feed import ChangeFeed
from sandherd.contracts.requests import BranchView

POLL_SECONDS: Final = 2.0
"""The interval between requests if no event is received."""


async def until(
    connection: Connection,
    find: Callable[[], Awaitable[BranchView]],
    is_wanted: Callable[[BranchView], bool],
    timeout: float,
) -> BranchView:
    """Return the branch as soon as `is_wanted` is true for it, or after `timeout` seconds. `find` requests the branch.

    Raises the `HerdError` of `find`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    async with ChangeFeed(connection, connection.project, ["branch"]) as feed:
        while True:
            feed.clear_stale()
            feed.take()
            view = await find()
            remaining = deadline - loop.time()
            if is_wanted(view) or remaining <= 0:
                return view
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, POLL_SECONDS)):
                    await feed.wait()
