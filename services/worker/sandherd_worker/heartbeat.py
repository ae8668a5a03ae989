"""Heartbeats: from before the agent starts to the last word, also while the agent is busy or the broker is away."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Literal

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentHeartbeat
from sandherd_worker.emitter import now
from sandherd_worker.processes import descendants, memory_of
from sandherd_worker.spool import Spool
from sandherd_worker.uplink import Uplink

Status = Literal["alive", "running", "waiting"]


class Heartbeat:
    """Says that the worker lives, at once and then every `interval` seconds."""

    def __init__(
        self,
        interval: float,
        say: Callable[[EventData], Awaitable[object]],
        measure: Callable[[Status], AgentHeartbeat],
    ) -> None:
        self._interval = interval
        self._say = say
        self._measure = measure
        self.status: Status = "alive"

    async def beat(self) -> None:
        """Beat until cancelled. The time that saying takes does not add up. Raises `SpoolError`."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._say(self._measure(self.status))
            due = max(due + self._interval, loop.time())
            await asyncio.sleep(due - loop.time())


def measuring(spool: Spool, uplink: Uplink) -> Callable[[Status], AgentHeartbeat]:
    """Makes heartbeats: what is said and waits by now, and what the sandbox's processes hold in memory."""

    def measure(status: Status) -> AgentHeartbeat:
        return AgentHeartbeat(
            timestamp=now(),
            status=status,
            event_count=spool.sequence,
            spool_depth=spool.depth,
            in_flight=uplink.in_flight,
            memory_bytes=memory_of({os.getpid(), *descendants()}),
        )

    return measure
