"""Waits until a branch is in a wanted state: by its events, and by requests for those that were missed."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sandherd.client.connection import Connection
from sandherd.client.events.change_feed import ChangeFeed
from sandherd.contracts.requests import BranchView

POLL_SECONDS: Final = 2.0


async def until(
    connection: Connection,
    find: Callable[[], Awaitable[BranchView]],
    is_wanted: Callable[[BranchView], bool],
    timeout: float,
) -> BranchView:
    """The branch once `is_wanted`, or as it is after `timeout` seconds. Raises `HerdError`, as `find` does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    async with ChangeFeed(connection, connection.project, ["branch"]) as feed:
        while True:
            feed.refreshing()
            feed.take()
            view = await find()
            left = deadline - loop.time()
            if is_wanted(view) or left <= 0:
                return view
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, POLL_SECONDS)):
                    await feed.wait()
