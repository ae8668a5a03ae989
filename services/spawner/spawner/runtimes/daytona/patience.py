"""A bound for what the SDK waits for.

Its own bounds do not always hold: it waits for a state with `asyncio.wait_for` within `asyncio.wait_for`, and in Python
3.11 a cancellation is lost that comes when the inner one's time is over, too; it then waits for ever.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

AnswerT = TypeVar("AnswerT")
_AGAIN: Final = 0.1


async def within(seconds: float, asked: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """The answer. Raises `TimeoutError` after so many seconds; what was asked for has ended then, as when cancelled."""
    task = asyncio.create_task(asked)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        late = not task.done()
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_AGAIN)
    if late:
        raise TimeoutError
    return task.result()
