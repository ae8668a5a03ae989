"""Polls conditions that are not announced: of another process, of a database, or of a broker's stream.

The intervals grow, because a check may cost more CPU time than the work that it waits for: on two cores, tests that
check every 10 ms starve each other. A test that can subscribe to an event waits for that instead.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.patience import PATIENCE

_FIRST: Final = 0.005
_LONGEST: Final = 0.15
_GROWTH: Final = 1.5


def intervals() -> Iterator[float]:
    """Seconds between checks: 5 ms, then longer ones, up to 150 ms."""
    wait = _FIRST
    while True:
        yield wait
        wait = min(_LONGEST, wait * _GROWTH)


async def eventually(find: Callable[[], Any], what: str | Callable[[], str] = "", seconds: float = PATIENCE) -> Any:
    """Call `find`, which may be a coroutine function, until its result is true, and return that result.

    Raises `AssertionError` with the text of `what` after `seconds`.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    for wait in intervals():
        found = find()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if asyncio.get_running_loop().time() > deadline:
            text = what() if callable(what) else what
            raise AssertionError(f"not within {seconds:g} s: {text or getattr(find, '__qualname__', find)}")
        await asyncio.sleep(wait)
    raise AssertionError("unreachable: the intervals do not end")
