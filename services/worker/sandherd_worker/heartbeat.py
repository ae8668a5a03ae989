"""Publishes heartbeats from before the agent's start to the last event, even while the broker is unavailable."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentHeartbeat, HeartbeatStatus
from sandherd.processes import memory_of
from sandherd_worker.emitter import now
from sandherd_worker.processes import descendants
from sandherd_worker.spool import Spool
from sandherd_worker.uplink import Uplink


class Heartbeat:
    """Publishes a heartbeat at once and then every `interval` seconds."""

    def __init__(
        self,
        interval: float,
        publish: Callable[[EventData], Awaitable[object]],
        measure: Callable[[HeartbeatStatus], AgentHeartbeat],
    ) -> None:
        self._interval = interval
        self._publish = publish
        self._measure = measure
        self.status: HeartbeatStatus = "alive"

    async def beat(self) -> None:
        """Publish heartbeats until cancelled. The time of publishing is part of the interval. Raises `SpoolError`."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._publish(self._measure(self.status))
            due = max(due + self._interval, loop.time())
            await asyncio.sleep(due - loop.time())


def heartbeat_factory(spool: Spool, uplink: Uplink) -> Callable[[HeartbeatStatus], AgentHeartbeat]:
    """A function that creates heartbeats, with the numbers of published and waiting events, and the used memory."""

    def measure(status: HeartbeatStatus) -> AgentHeartbeat:
        return AgentHeartbeat(
            timestamp=now(),
            status=status,
            event_count=spool.sequence,
            spool_depth=spool.depth,
            in_flight=uplink.in_flight,
            memory_bytes=memory_of({os.getpid(), *descendants()}),
        )

    return measure
