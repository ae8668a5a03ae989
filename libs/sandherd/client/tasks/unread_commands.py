"""Commands that the spawner has not read yet. One of them may be the submission of a task by another program."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sandherd.client import queries
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests.diagnostics import ExamineSpawner

UNREAD_SECONDS: Final = 30.0
"""Maximum time to wait for an unknown task while there are unread commands. New commands may arrive all the time."""
_CHECK_SECONDS: Final = 0.5
_EXAMINE_SECONDS: Final = 10.0


async def query_until_read(
    send: queries.SendRequest,
    query: Callable[[], Awaitable[None]],
    change: Callable[[], Awaitable[None]],
    timeout: float | None = None,
) -> None:
    """Call `query` until it succeeds, because an unread command may create the task. `change` waits for an event.

    Raises `HerdError` (`not_found`) if the task is still unknown when no command is unread, or after the shorter of
    `timeout` and `UNREAD_SECONDS`.
    """
    clock = asyncio.get_running_loop().time
    deadline, all_read = clock() + min(UNREAD_SECONDS, UNREAD_SECONDS if timeout is None else timeout), False
    while True:
        try:
            return await query()
        except HerdError as error:
            if error.problem.code is not Code.NOT_FOUND or all_read or clock() > deadline:
                raise
        all_read = not await has_unread_commands(send)
        if not all_read:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await change()


async def has_unread_commands(send: queries.SendRequest) -> bool | None:
    """Whether commands wait for the spawner. None if event-ingest or the spawner does not report it."""
    try:
        examination = await send(ExamineSpawner(), timeout=_EXAMINE_SECONDS)
    except HerdError:
        return None
    counts = [
        consumer.pending + consumer.unacknowledged
        for consumer in examination.waiting
        if consumer.consumer == "spawner-commands"
    ]
    return any(counts) if counts else None
