"""Heartbeats: from before the agent starts to the last word, also while the agent is busy or the broker is away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentHeartbeat

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
