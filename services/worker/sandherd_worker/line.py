"""The line to the broker, for what has to outlive a single connection."""

import asyncio

from sandherd.bus.connection import Bus


class Line:
    """Holds the connection of the moment."""

    def __init__(self) -> None:
        self._bus: Bus | None = None
        self._taken = asyncio.Event()

    def take(self, bus: Bus) -> None:
        """From now on this is the connection."""
        self._bus = bus
        self._taken.set()

    def drop(self) -> None:
        """There is none until the next is taken."""
        self._bus = None
        self._taken.clear()

    async def bus(self) -> Bus:
        """The connection, once there is one."""
        while self._bus is None:
            await self._taken.wait()
        return self._bus
