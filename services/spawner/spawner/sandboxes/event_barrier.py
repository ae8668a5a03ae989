"""Checks whether all earlier events of agents are handled, so that no event of an ended worker is pending."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.contracts.streams import BY_CONSUMER

AGENTS: Final = "spawner-agents"
_WAIT_SECONDS: Final = 2.0
"""How long one call waits for the events to be handled, in seconds."""
_POLL_SECONDS: Final = 0.1


def event_barrier(bus: Bus) -> Callable[[], Awaitable[bool]]:
    """Returns a function that checks whether every event that the broker has at the time of the call is handled.

    Other agents continue to publish, so the stream may never be idle. So the function compares the sequence number up
    to which all events are acknowledged. It waits briefly; the caller repeats it if needed.
    """
    stream = BY_CONSUMER[AGENTS].stream

    async def settled() -> bool:
        info: Any = await bus.js.stream_info(stream)
        clock = asyncio.get_running_loop().time
        deadline = clock() + _WAIT_SECONDS
        while not await _is_acknowledged(bus, stream, info.state.last_seq):
            if clock() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    return settled


async def _is_acknowledged(bus: Bus, stream: str, last: int) -> bool:
    info = await bus.js.consumer_info(stream, AGENTS)
    idle = not info.num_pending and not info.num_ack_pending
    return idle or (info.ack_floor is not None and (info.ack_floor.stream_seq or 0) >= last)
