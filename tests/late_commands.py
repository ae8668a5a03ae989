"""Commands that are ended by their limit of time after they have written something."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

RanT = TypeVar("RanT")

_FIRST: Final = 3.0
_LONGER: Final = (10.0, 60.0)
"""Seconds. How long a command needs to begin and to write, is unknown on a busy machine."""


async def ran_out_of_time(run: Callable[[float], Awaitable[RanT]], wrote: Callable[[RanT], object]) -> RanT:
    """What a command came to at its limit; it is run again with a longer one if it could not write within it."""
    ran = await run(_FIRST)
    for seconds in _LONGER:
        if wrote(ran):
            break
        ran = await run(seconds)
    return ran
