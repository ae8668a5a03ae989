"""What an agent that stays does between two iterations: its turns, and what is on its way to it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_BEGINS: Final = 5.0
"""How long after a message that was taken its turn may begin, in seconds."""
_SETTLE: Final = 0.1
"""How soon after a turn another one may follow that belongs to it: what was said meanwhile, in seconds."""


class Turns:
    """Told of each turn's beginning and end."""

    def __init__(self) -> None:
        self.over = 0
        """How many have ended."""
        self._working = False
        self._giving = 0
        self._news = asyncio.Event()

    def note(self, *, working: bool) -> None:
        """A turn has begun or is over."""
        self.over += self._working and not working
        self._working = working
        self._tell()

    def forget(self) -> None:
        """The agent is another one, and does nothing yet."""
        self._working = False

    @contextmanager
    def giving(self) -> Iterator[None]:
        """A message is on its way to the agent."""
        self._giving += 1
        try:
            yield
        finally:
            self._giving -= 1
            self._tell()

    async def rest(self, before: int) -> None:
        """Wait until more than `before` turns are over, none goes on, and nothing is on its way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_BEGINS):
                while self.over == before and not self._working:
                    await self._news.wait()
        while not await self._settled():
            pass

    async def _settled(self) -> bool:
        """Wait until no turn goes on; False if another one follows at once."""
        while self._working or self._giving:
            await self._news.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE):
                await self._news.wait()
                return False
        return True

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
