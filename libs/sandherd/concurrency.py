"""Runs coroutines concurrently, ends tasks reliably, aligns periodic tasks, and has locks by key.

Python 3.11's `asyncio.wait_for`, which nats-py uses in `request`, swallows a cancellation that arrives in the same
iteration of the event loop as the reply. A loop around it then continues, and a caller that cancels it only once, as
`TaskGroup` does, waits forever. So tasks are cancelled here repeatedly until they have ended.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

CLEANUP_SECONDS: Final = 5.0
"""How long a task may clean up before it is cancelled again."""
SHORT_CLEANUP_SECONDS: Final = 0.5
"""How long a task of a worker may clean up. A worker must end in time, even if its tasks wait for the broker."""

_CLOCK_OFFSET: Final = random.uniform(0, 3600)
"""Seconds. It differs between processes, so that the services of a host do not wake up at the same time."""

KeyT = TypeVar("KeyT", bound=Hashable)
FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


async def run_until_first(*runs: Awaitable[object], again_after: float = CLEANUP_SECONDS) -> None:
    """Run these concurrently until one of them ends or fails, then cancel the others. Raises the error of that one."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_and_wait(tasks, again_after=again_after)


async def both(first: Awaitable[FirstT], second: Awaitable[SecondT]) -> tuple[FirstT, SecondT]:
    """Run two awaitables concurrently, and return their results. If one fails, the other is cancelled."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        one, other = await asyncio.gather(*tasks)
        return one, other
    finally:
        await cancel_and_wait(tasks)


async def cancel_and_wait(tasks: Iterable["asyncio.Future[Any]"], *, again_after: float = CLEANUP_SECONDS) -> None:
    """Cancel tasks, again every `again_after` seconds, until all have ended. Exceptions of the tasks are ignored."""
    cancelled: asyncio.CancelledError | None = None
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=again_after)
        except asyncio.CancelledError as error:
            # The calling task was cancelled meanwhile: continue until all have ended, then raise it.
            cancelled = error
        ended = {task for task in pending if task.done()}
        pending -= ended
        for task in ended:
            # Retrieves the exception, so that asyncio does not log it as never retrieved.
            _ = task.cancelled() or task.exception()
    if cancelled is not None:
        raise cancelled


def aligned_delay(interval: float) -> float:
    """Seconds until a multiple of `interval` on a clock of this process; 0.25 to 1.25 times `interval`.

    Periodic tasks that wait this long wake up together, and the messages that they send share one write. An idle
    process with many of them wakes up a few times per second instead of dozens of times, which takes most of its CPU.
    """
    delay = interval - (asyncio.get_running_loop().time() + _CLOCK_OFFSET) % interval
    return delay if delay >= interval / 4 else delay + interval


async def sleep_aligned(interval: float) -> None:
    """Sleep for `aligned_delay(interval)` seconds."""
    await asyncio.sleep(aligned_delay(interval))


class KeyedLocks(Generic[KeyT]):
    """One lock for each key. Holders of different keys run concurrently. Unused locks are deleted."""

    def __init__(self) -> None:
        self._locks: dict[KeyT, asyncio.Lock] = {}
        self._users: dict[KeyT, int] = {}

    @asynccontextmanager
    async def hold(self, key: KeyT) -> AsyncIterator[None]:
        """Hold the key's lock until the block ends. Waiters get it in the order of their calls."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
