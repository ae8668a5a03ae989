"""Whether all that agents have said until now was taken in: only then is a worker that is gone known to be silent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.contracts.streams import BY_CONSUMER

AGENTS: Final = "spawner-agents"
_PATIENCE: Final = 2.0
_LOOK_AGAIN: Final = 0.1


def settling(bus: Bus) -> Callable[[], Awaitable[bool]]:
    """A question to the broker: was every event taken in that it had when it was asked?

    Others go on talking, so a stream that is never idle is no reason to wait for ever: what counts is the place up to
    which all is acknowledged. It is waited for a little; whoever needs to know asks again.
    """
    stream = BY_CONSUMER[AGENTS].stream

    async def settled() -> bool:
        info: Any = await bus.js.stream_info(stream)
        clock = asyncio.get_running_loop().time
        deadline = clock() + _PATIENCE
        while not await _past(bus, stream, info.state.last_seq):
            if clock() > deadline:
                return False
            await asyncio.sleep(_LOOK_AGAIN)
        return True

    return settled


async def _past(bus: Bus, stream: str, last: int) -> bool:
    info = await bus.js.consumer_info(stream, AGENTS)
    idle = not info.num_pending and not info.num_ack_pending
    return idle or (info.ack_floor is not None and (info.ack_floor.stream_seq or 0) >= last)
