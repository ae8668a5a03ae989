"""Commands that the spawner has not read yet: a task that another program has just submitted may be in one of them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sandherd.client import queries
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests.diagnostics import ExamineSpawner

UNREAD_SECONDS: Final = 30.0
"""Maximum time to wait for an unknown task while there are unread commands: further commands may arrive forever."""
_CHECK_SECONDS: Final = 0.5
_EXAMINE_SECONDS: Final = 10.0


async def query_until_read(
    send: queries.SendRequest,
    query: Callable[[], Awaitable[None]],
    change: Callable[[], Awaitable[None]],
    timeout: float | None = None,
) -> None:
    """Repeat `query` for a task that an unread command may create. `change` returns after an event.

    Raises `HerdError` (`not_found`) if the task is unknown when no command is unread, or after `timeout` or
    `UNREAD_SECONDS`.
    """
    clock = asyncio.get_running_loop().time
    deadline, read = clock() + min(UNREAD_SECONDS, UNREAD_SECONDS if timeout is None else timeout), False
    while True:
        try:
            return await query()
        except HerdError as error:
            if error.problem.code is not Code.NOT_FOUND or read or clock() > deadline:
                raise
        read = not await unread(send)
        if not read:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await change()


async def unread(send: queries.SendRequest) -> bool | None:
    """Whether commands wait for the spawner. None if event-ingest or the spawner does not report it."""
    try:
        found = await send(ExamineSpawner(), timeout=_EXAMINE_SECONDS)
    except HerdError:
        return None
    counts = [one.pending + one.unacknowledged for one in found.waiting if one.consumer == "spawner-commands"]
    return any(counts) if counts else None
