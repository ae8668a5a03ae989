"""Decides when messages are delivered, by one asyncio task for each sandbox with waiting messages."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from message_relay.answer_router import LeftoverAnswer
from message_relay.inbox import FirstMessage, Inbox, Key
from message_relay.inbox_delivery import InboxDelivery
from sandherd.backoff import Backoff
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import cancel_and_wait, sleep_aligned
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.base import types_with_state
from sandherd.contracts.events.message import ApprovalDenied, ApprovalGranted, MessageQueued
from sandherd.contracts.events.sandbox import SandboxFailed, SandboxResumed, SandboxTerminated
from sandherd.contracts.states import TASK_ENDED
from sandherd.contracts.streams import live_subject, stored_subject
from sandherd.contracts.subjects import PREFIX
from sandherd.telemetry import logs

BACKOFF: Final = Backoff(base=0.25, cap=15.0, jitter=0.5)
"""The backoff for a worker that does not reply. When it publishes an event, delivery is tried at once."""
SCAN_INTERVAL: Final = 15.0
"""Seconds between two searches for sandboxes with waiting messages."""
_LEASE_CHECK_SECONDS: Final = 0.5
"""Seconds between two checks whether this relay holds the lease."""
_SANDBOX_WAKING_EVENTS: Final = (SandboxTerminated.type, SandboxFailed.type, SandboxResumed.type)
"""Events of a sandbox after which its waiting messages are tried at once."""
_CARRYOVER_WAKING_EVENTS: Final = (
    ApprovalGranted.type,
    ApprovalDenied.type,
    *sorted(types_with_state(TASK_ENDED, EVENTS)),
)
"""Events after which an answer for the next attempt may be delivered, or is no longer needed."""
_log: Final = logs.get("dispatcher")


class Dispatcher:
    """Delivers waiting messages while this relay holds the lease."""

    def __init__(self, bus: Bus, lease: Lease, inbox: Inbox, delivery: InboxDelivery) -> None:
        self._bus = bus
        self._lease = lease
        self._inbox = inbox
        self._delivery = delivery
        self._woken: dict[Key, asyncio.Event] = {}
        self._with_carryover: set[Key] = set()
        """Sandboxes whose inbox has an answer that the agent of the next attempt may need."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._open = False

    def serves(self, key: Key) -> bool:
        """Whether messages of a sandbox are being delivered, or wait for its worker."""
        return key in self._woken

    def wake(self, key: Key, first: FirstMessage | None = None) -> None:
        """Try to deliver the messages of a sandbox now: a new one waits, or its worker may be available again.

        `first` is the new message, if it is known that none was waiting before it.
        """
        woken = self._woken.get(key)
        if woken is not None:
            woken.set()
        elif self._open and self._lease.held:
            self._woken[key] = asyncio.Event()
            task = asyncio.create_task(self._serve(key, first), name=f"serve {key[1]}")
            self._tasks.add(task)
            task.add_done_callback(self._on_served)

    def _on_served(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LeaseLostError):
            self._failure = error

    async def run(self) -> None:
        """Deliver until the lease is lost. Raises the exception of a sandbox's task that failed unexpectedly."""
        self._open = True
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._waking_on("*", "*", MessageQueued.type, start=True))
                for event_type in _SANDBOX_WAKING_EVENTS:
                    await stack.enter_async_context(self._waking_on("*", "*", event_type, start=False))
                for event_type in _CARRYOVER_WAKING_EVENTS:
                    await stack.enter_async_context(self._waking_carryovers_on(event_type))
                await self._scan_repeatedly()
        except LeaseLostError:
            _log.warning("lease lost, delivery stopped")
        finally:
            self._open = False
            await cancel_and_wait(list(self._tasks))
            self._woken.clear()  # a task that was cancelled before it began did not remove its entry

    async def _scan_repeatedly(self) -> None:
        """Find waiting messages at start, after a reconnect and periodically, because events may be missed."""
        last, reconnects = 0.0, -1
        clock = asyncio.get_running_loop().time
        while self._failure is None:
            self._lease.check()
            if reconnects != self._bus.reconnects or clock() - last > SCAN_INTERVAL:
                last, reconnects = clock(), self._bus.reconnects
                await self._scan()
            await sleep_aligned(_LEASE_CHECK_SECONDS)
        raise self._failure

    async def _scan(self) -> None:
        try:
            waiting = await self._inbox.waiting_sandboxes()
        except BROKER_ERRORS as error:
            _log.warning("sandboxes with waiting messages not listed", error=repr(error))
            return
        for key in waiting:
            self.wake(key)

    async def _serve(self, key: Key, first: FirstMessage | None) -> None:
        """Deliver the messages that wait for one sandbox until none is left."""
        woken = self._woken[key]
        try:
            while True:
                woken.clear()
                left, first = await self._drain(key, first=first), None
                if left is not LeftoverAnswer.NOTHING:
                    await self._retry_until_empty(key, woken, left)
                elif not woken.is_set():
                    return
        finally:
            self._woken.pop(key, None)
            self._with_carryover.discard(key)

    async def _retry_until_empty(self, key: Key, woken: asyncio.Event, left: LeftoverAnswer) -> None:
        """Retry when the worker publishes or resumes, and after each backoff, until no message is left."""
        clock = asyncio.get_running_loop().time
        attempt, due = 0, clock()
        async with self._waking_on(*key, "agent.*", start=False):
            while (
                left := await self._drain(key, overtake=left is LeftoverAnswer.SILENT)
            ) is not LeftoverAnswer.NOTHING:
                if clock() >= due:
                    due = clock() + await self._expire(key)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(BACKOFF.delay(attempt), max(0.0, due - clock()))):
                        await woken.wait()
                attempt = 0 if woken.is_set() else attempt + 1
                woken.clear()

    async def _drain(self, key: Key, *, overtake: bool = False, first: FirstMessage | None = None) -> LeftoverAnswer:
        """Deliver what waits. Returns what remains. An unavailable broker is treated like an unavailable worker."""
        try:
            left = await self._delivery.drain(key, overtake=overtake, first=first)
            (self._with_carryover.add if left is LeftoverAnswer.NEXT else self._with_carryover.discard)(key)
            return left
        except BROKER_ERRORS as error:
            _log.warning("inbox unavailable", sandbox=key[1], error=repr(error))
            return LeftoverAnswer.UNAVAILABLE

    async def _expire(self, key: Key) -> float:
        """End the sandbox's expired messages. Returns the number of seconds until the next check."""
        try:
            due = await self._delivery.expire(key)
        except BROKER_ERRORS as error:
            _log.warning("inbox unavailable", sandbox=key[1], error=repr(error))
            return BACKOFF.base
        left = (due - datetime.now(UTC)).total_seconds() if due is not None else SCAN_INTERVAL
        return min(SCAN_INTERVAL, max(0.0, left))

    @asynccontextmanager
    async def _waking_on(self, project: str, sandbox: str, event_type: str, *, start: bool) -> AsyncIterator[None]:
        """Wake the sandbox of each of these events. Without `start`, only a sandbox that already has a task."""

        async def wake_sandbox(msg: Msg) -> None:
            _, _, _, its_project, its_sandbox, *_ = stored_subject(msg.subject).split(".")
            if start or (its_project, its_sandbox) in self._woken:
                self.wake((its_project, its_sandbox))

        async with self._subscribed(f"{PREFIX}.event.{project}.{sandbox}.{event_type}", wake_sandbox):
            yield

    @asynccontextmanager
    async def _waking_carryovers_on(self, event_type: str) -> AsyncIterator[None]:
        """For each of these events, wake the sandboxes of its project that have an answer for the next attempt."""

        async def wake_carryovers(msg: Msg) -> None:
            project = stored_subject(msg.subject).split(".")[3]
            for key in self._with_carryover:
                if key[0] == project:
                    self.wake(key)

        async with self._subscribed(f"{PREFIX}.event.*.*.{event_type}", wake_carryovers):
            yield

    @asynccontextmanager
    async def _subscribed(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> AsyncIterator[None]:
        # The relay's account does not receive events of other accounts, but the stream republishes stored ones to it.
        subscription = await self._bus.client.subscribe(live_subject(subject), cb=callback)
        try:
            yield
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
