"""Running things side by side and ending them for sure.

Python 3.11's `asyncio.wait_for`, which nats-py uses in `request`, swallows a cancellation that comes in the same turn
of the loop in which its answer does. A loop around it then goes on, and whoever cancelled it once, as a `TaskGroup`
does, waits for ever. So what is ended here is cancelled again until it is over.
"""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, Final

AGAIN_AFTER: Final = 5.0
"""A task gets so many seconds to clean up before it is cancelled once more."""


async def together(*runs: Coroutine[Any, Any, None]) -> None:
    """Run these side by side until the first of them ends or fails; then end the others, and raise what it raised."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end(tasks)


async def end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel these until they are over. What they raise then is theirs to have said."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=AGAIN_AFTER)
        except asyncio.CancelledError as error:
            # Ended ourselves meanwhile: first these, then we.
            cancelled = error
    if cancelled is not None:
        raise cancelled
