"""Who is attended to, and when. One task per sandbox for which something waits, and nothing at all for the others."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from message_relay.handing import Left
from message_relay.inbox import Inbox, Key
from message_relay.pumping import Pump
from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.bus.together import end
from sandherd.contracts.streams import live_subject, stored_subject
from sandherd.contracts.subjects import PREFIX
from sandherd.telemetry import logs

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 15.0
"""Between two tries to reach a worker that says nothing. One that says something is tried at once."""
LOOKED_THROUGH_EVERY: Final = 15.0
_CHECKED_EVERY: Final = 0.5
_OF_THE_NEXT: Final = ("approval.granted", "approval.denied", "task.completed", "task.failed", "task.cancelled")
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, asyncio.TimeoutError, OSError)
_log: Final = logs.get("delivery")


class Delivering:
    """One holding of the lease: hands over what waits, for as long as this relay is the one that does."""

    def __init__(self, bus: Bus, lease: Lease, inbox: Inbox, pump: Pump) -> None:
        self._bus = bus
        self._lease = lease
        self._inbox = inbox
        self._pump = pump
        self._woken: dict[Key, asyncio.Event] = {}
        self._expecting: set[Key] = set()
        """For whom an answer waits that the agent of the next attempt may ask for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._open = False

    def wake(self, key: Key) -> None:
        """Something waits for this sandbox, or it may be back: attend to it."""
        woken = self._woken.get(key)
        if woken is not None:
            woken.set()
        elif self._open and self._lease.held:
            self._woken[key] = asyncio.Event()
            task = asyncio.create_task(self._attend(key), name=f"attend {key[1]}")
            self._tasks.add(task)
            task.add_done_callback(self._attended)

    def _attended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LeaseLostError):
            self._failure = error

    async def run(self) -> None:
        """Deliver until the lease is lost. Raises what an unforeseen failure of an attendant was."""
        self._open = True
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._hearing("*", "*", "message.queued", start=True))
                await stack.enter_async_context(self._hearing("*", "*", "sandbox.terminated", start=False))
                await stack.enter_async_context(self._hearing("*", "*", "sandbox.failed", start=False))
                await stack.enter_async_context(self._hearing("*", "*", "sandbox.resumed", start=False))
                for said in _OF_THE_NEXT:
                    await stack.enter_async_context(self._expecting_what_is(said))
                await self._look_through_on()
        except LeaseLostError:
            _log.warning("another delivers now")
        finally:
            self._open = False
            await end(list(self._tasks))

    async def _look_through_on(self) -> None:
        """Find who waits: at the start, after the broker was away, and now and then: no event is sure to be heard."""
        last, reconnects = 0.0, -1
        clock = asyncio.get_running_loop().time
        while self._failure is None:
            self._lease.check()
            if reconnects != self._bus.reconnects or clock() - last > LOOKED_THROUGH_EVERY:
                last, reconnects = clock(), self._bus.reconnects
                await self._look_through()
            await asyncio.sleep(_CHECKED_EVERY)
        raise self._failure

    async def _look_through(self) -> None:
        try:
            waiting = await self._inbox.waiting_sandboxes()
        except _UNANSWERED as error:
            _log.warning("who waits can't be read now", error=repr(error))
            return
        for key in waiting:
            self.wake(key)

    async def _attend(self, key: Key) -> None:
        """Hand over what waits for one sandbox until nothing does."""
        woken = self._woken[key]
        try:
            while True:
                woken.clear()
                left = await self._drain(key)
                if left is not Left.NOTHING:
                    await self._wait_for_its_return(key, woken, left)
                elif not woken.is_set():
                    return
        finally:
            self._woken.pop(key, None)
            self._expecting.discard(key)

    async def _wait_for_its_return(self, key: Key, woken: asyncio.Event, left: Left) -> None:
        """Try again whenever the worker says something or goes on, and now and then, until nothing waits any more."""
        clock = asyncio.get_running_loop().time
        attempt, due = 0, clock()
        async with self._hearing(*key, "agent.*", start=False):
            while (left := await self._drain(key, overtake=left is Left.SILENT)) is not Left.NOTHING:
                if clock() >= due:
                    due = clock() + await self._expire(key)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_pause(attempt), max(0.0, due - clock()))):
                        await woken.wait()
                attempt = 0 if woken.is_set() else attempt + 1
                woken.clear()

    async def _drain(self, key: Key, *, overtake: bool = False) -> Left:
        """What still waits then. A broker that does not answer is like a worker that is away."""
        try:
            left = await self._pump.drain(key, overtake=overtake)
            (self._expecting.add if left is Left.NEXT else self._expecting.discard)(key)
            return left
        except _UNANSWERED as error:
            _log.warning("the inbox can't be read now", sandbox=key[1], error=repr(error))
            return Left.AWAY

    async def _expire(self, key: Key) -> float:
        """End what has waited too long. Returns in how many seconds to look again."""
        try:
            due = await self._pump.expire(key)
        except _UNANSWERED as error:
            _log.warning("the inbox can't be read now", sandbox=key[1], error=repr(error))
            return FIRST_PAUSE
        left = (due - datetime.now(UTC)).total_seconds() if due is not None else LOOKED_THROUGH_EVERY
        return min(LOOKED_THROUGH_EVERY, max(0.0, left))

    @asynccontextmanager
    async def _hearing(self, project: str, sandbox: str, event_type: str, *, start: bool) -> AsyncIterator[None]:
        """Let these events wake the sandbox they are about; unless `start`, only one that is attended to already."""

        async def heard(msg: Msg) -> None:
            _, _, _, said_project, said_sandbox, *_ = stored_subject(msg.subject).split(".")
            if start or (said_project, said_sandbox) in self._woken:
                self.wake((said_project, said_sandbox))

        async with self._subscribed(f"{PREFIX}.event.{project}.{sandbox}.{event_type}", heard):
            yield

    @asynccontextmanager
    async def _expecting_what_is(self, said: str) -> AsyncIterator[None]:
        """Let these events wake those of their project for whom an answer waits that the next attempt may ask for."""

        async def heard(msg: Msg) -> None:
            project = stored_subject(msg.subject).split(".")[3]
            for key in self._expecting:
                if key[0] == project:
                    self.wake(key)

        async with self._subscribed(f"{PREFIX}.event.*.*.{said}", heard):
            yield

    @asynccontextmanager
    async def _subscribed(self, subject: str, heard: Callable[[Msg], Awaitable[None]]) -> AsyncIterator[None]:
        # Its own account receives no events of others: the stream republishes there what it has stored.
        subscription = await self._bus.client.subscribe(live_subject(subject), cb=heard)
        try:
            yield
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()


def _pause(attempt: int) -> float:
    """Half of it fixed and half of it by chance, so that many that wait do not ask at once."""
    bound: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 10))
    return random.uniform(bound / 2, bound)
