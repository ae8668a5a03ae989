"""Runs commands that are stopped by their time limit after they have written something."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

RanT = TypeVar("RanT")

_FIRST: Final = 3.0
_LONGER: Final = (10.0, 60.0)
"""Time limits in seconds: on a busy machine it is not known how long a command needs until it has written."""


async def ran_out_of_time(run: Callable[[float], Awaitable[RanT]], wrote: Callable[[RanT], object]) -> RanT:
    """The result of a command that exceeds its time limit. If it wrote too little, it is run with a longer limit."""
    ran = await run(_FIRST)
    for seconds in _LONGER:
        if wrote(ran):
            break
        ran = await run(seconds)
    return ran
