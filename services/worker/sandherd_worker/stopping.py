"""Why and when the worker has to end before its agent has."""

import asyncio
import time
from typing import Final

STOPPED: Final = "stopped"
REFUSED: Final = "refused"
SPOOL: Final = "spool"


class Stop:
    """Asked for by SIGTERM, by a refused credential, or by a spool that can't be written. The first reason stays."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._asked = asyncio.Event()
        self._terminated = asyncio.Event()
        self._terminated_at = 0.0

    def ask(self, reason: str) -> None:
        """The worker has to end, for this reason."""
        self.reason = self.reason or reason
        self._asked.set()

    def terminate(self) -> None:
        """SIGTERM has come: the runtime's grace runs from now on."""
        if not self._terminated.is_set():
            self._terminated_at = asyncio.get_running_loop().time()
            self._terminated.set()
        self.ask(STOPPED)

    async def asked(self) -> None:
        """Wait until the worker has to end."""
        await self._asked.wait()

    def past(self, grace: float) -> bool:
        """Whether `grace` seconds have passed since SIGTERM; False while none has come. Any thread may ask."""
        return self._terminated.is_set() and time.monotonic() >= self._terminated_at + grace

    async def terminated(self, grace: float) -> None:
        """Wait until `grace` seconds have passed since SIGTERM; for ever if none comes."""
        await self._terminated.wait()
        left = self._terminated_at + grace - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, left))
