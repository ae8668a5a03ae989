"""Where a spawner touches the world: every await on the broker, a runtime or a lease passes here, and may be its last.

One such act at a time in the whole world, in the order of asking: so the same history goes the same way again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")
_STILL: Final = 8
"""The number of turns of the loop without an act, after which nothing is in progress any more."""


class Died(BaseException):  # not an error to be handled: the process is gone
    """The spawner was killed here; nothing of it goes on."""


class Kind(StrEnum):
    """What happens to a spawner at one of its acts."""

    CRASH = "crash"
    """It is killed."""
    SLOW = "slow"
    """This one answer is long in coming, while all else goes on."""
    STOP = "stop"
    """The whole process is stopped (SIGSTOP) until it is thawed."""


@dataclass(frozen=True)
class Fate:
    """What happens at the n-th point, counted from now: there is one before and one after each act."""

    kind: Kind
    at: int


class Traffic:
    """The acts of all spawners, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._going = 0
        self._idle = asyncio.Event()

    async def act(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, after all that were asked for before."""
        self._going += 1
        self._idle.clear()
        try:
            async with self._turn:
                return await work()
        finally:
            self._going -= 1
            if not self._going:
                self._idle.set()

    async def quiet(self) -> None:
        """Return when nothing goes on any more, but what waits to be thawed."""
        still = 0
        while still < _STILL:
            if self._going:
                await self._idle.wait()
                still = 0
            await asyncio.sleep(0)
            still += 1


class Gate:
    """The way of one spawner to the world."""

    def __init__(self, name: str, traffic: Traffic) -> None:
        self.name = name
        self.dead = False
        self.met: list[str] = []
        """What befell it, and where."""
        self._traffic = traffic
        self._fate: Fate | None = None
        self._passed = 0
        self._slow: list[asyncio.Event] = []
        self._stopped: asyncio.Event | None = None

    @property
    def stopped(self) -> bool:
        """Whether the process stands still."""
        return self._stopped is not None

    def destine(self, fate: Fate | None) -> None:
        """From here on its points are counted, and this happens."""
        self._fate, self._passed = fate, 0

    async def act(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """One act. It may fail before it is done, and after it is done and before it knows."""
        await self._point(f"before {what}")
        try:
            return await self._traffic.act(work)
        finally:
            await self._point(f"after {what}")

    def die(self) -> None:
        """Killed. What waits inside goes on only to find that out."""
        self.dead = True
        self.thaw_all()

    def thaw(self) -> bool:
        """Let the process, or else its oldest slow act, go on. Returns whether there was one."""
        if self._stopped:
            self._stopped.set()
            self._stopped = None
            return True
        if self._slow:
            self._slow.pop(0).set()
            return True
        return False

    def thaw_all(self) -> None:
        """Let everything go on."""
        while self.thaw():
            pass

    async def _point(self, where: str) -> None:
        self._alive()
        self._passed += 1
        if self._fate and self._passed >= self._fate.at:
            await self._meet(self._fate, where)
        while self._stopped is not None:
            await self._stopped.wait()
        self._alive()

    def _alive(self) -> None:
        if self.dead:
            raise Died(self.name)

    async def _meet(self, fate: Fate, where: str) -> None:
        self.met.append(f"{fate.kind} {where}")
        self._fate = None
        match fate.kind:
            case Kind.CRASH:
                self.die()
            case Kind.STOP:
                self._stopped = asyncio.Event()
            case Kind.SLOW:
                answer = asyncio.Event()
                self._slow.append(answer)
                await answer.wait()
