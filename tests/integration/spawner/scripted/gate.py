"""The gate of a spawner: every await on the broker, a runtime or a lease passes it; the spawner may be killed there.

Only one such act happens at a time in all spawners, in the order of the calls, so that a history can be repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")
_STILL: Final = 8
"""The number of turns of the loop without an act after which nothing is in progress any more."""


class Died(BaseException):  # not an error to be handled: the process has ended
    """The spawner was killed here; none of its code continues."""


class Kind(StrEnum):
    """What happens to a spawner at one of its acts."""

    CRASH = "crash"
    """The spawner is killed."""
    SLOW = "slow"
    """The reply to this one act is delayed, while everything else continues."""
    STOP = "stop"
    """The whole process is stopped (SIGSTOP) until it is thawed."""


@dataclass(frozen=True)
class Fate:
    """An event at the n-th point from now; there is a point before and after each act."""

    kind: Kind
    at: int


class Traffic:
    """The acts of all spawners, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._going = 0
        self._idle = asyncio.Event()

    async def act(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do an act, after all acts that were requested before it."""
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
        """Return when nothing is in progress, except acts that wait to be thawed."""
        still = 0
        while still < _STILL:
            if self._going:
                await self._idle.wait()
                still = 0
            await asyncio.sleep(0)
            still += 1


class Gate:
    """The gate between one spawner and the world."""

    def __init__(self, name: str, traffic: Traffic) -> None:
        self.name = name
        self.dead = False
        self.met: list[str] = []
        """The fates that it has met, with their places."""
        self._traffic = traffic
        self._fate: Fate | None = None
        self._passed = 0
        self._slow: list[asyncio.Event] = []
        self._stopped: asyncio.Event | None = None

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped."""
        return self._stopped is not None

    def destine(self, fate: Fate | None) -> None:
        """Count points from here, and apply this fate when its point is reached."""
        self._fate, self._passed = fate, 0

    async def act(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do one act. The spawner may be killed before the act, or after it and before it knows the result."""
        await self._point(f"before {what}")
        try:
            return await self._traffic.act(work)
        finally:
            await self._point(f"after {what}")

    def die(self) -> None:
        """Kill the spawner. Acts that wait continue only to raise `Died`."""
        self.dead = True
        self.thaw_all()

    def thaw(self) -> bool:
        """Let the process continue, or else its oldest slow act. Returns whether there was one."""
        if self._stopped:
            self._stopped.set()
            self._stopped = None
            return True
        if self._slow:
            self._slow.pop(0).set()
            return True
        return False

    def thaw_all(self) -> None:
        """Let everything continue."""
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
