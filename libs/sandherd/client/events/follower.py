"""Follows a task or a sandbox to its end: live events, with gaps filled from the history, in order per source.

A live subscription loses messages while it reconnects or when its reader is slow. Sources number their events, so
missing events are requested from event-ingest. Without event-ingest, live events continue, and `missing` has the gaps.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Final, Self

from sandherd.backoff import Backoff
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.client.events.completion import CompletionDetector
from sandherd.client.events.gap_filler import FollowLimits, GapFiller
from sandherd.client.events.live_feed import ConnectionSignal, LiveFeed
from sandherd.client.events.protocols import HerdConnection
from sandherd.client.events.sequencer import Event, MissingRange
from sandherd.client.events.target import SANDBOX_START, Target, entity_subjects
from sandherd.contracts.errors import Code
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED

_MAX_INTERVAL_FACTOR: Final = 12
"""Maximum interval between reads or retries of the history, in multiples of `FollowLimits.check`."""


class EventFollower:
    """The events of one task or sandbox. Iterate over it; `async with` subscribes when it is entered."""

    def __init__(
        self, link: HerdConnection, target: Target, *, fresh: bool = False, limits: FollowLimits | None = None
    ) -> None:
        self.missing: list[MissingRange] = []
        """Events that are missing; empty if there are no gaps."""
        self._link = link
        self._target = target
        self._fresh = fresh
        self._limits = limits or FollowLimits()
        self._now = asyncio.get_running_loop().time
        self._gaps = GapFiller(link.request, target, self._limits, self._now, fresh=fresh)
        self._ending = CompletionDetector(target, self._gaps, self._now)
        # `_join_if_new` is called on receipt of an event, so that a slow reader does not miss the start of a sandbox.
        self._feed = LiveFeed(link, self._join_if_new)
        self._unsubscribe_commands: Callable[[], None] = lambda: None
        self._ready: deque[Event] = deque()
        self._catch_up_events: AsyncGenerator[Event] | None = None
        self._must_catch_up = not fresh
        self._catch_up_at = self._began_at = self._check_at = 0.0
        self._nothing_received = True
        self._next_read_at, self._read_interval = 0.0, self._limits.check
        self._failed_catch_ups, self._is_over = 0, False

    @property
    def is_complete(self) -> bool:
        """Whether no event is known to be missing so far. The target may still run.

        `missing` has the missing events.
        """
        return not self.missing

    @property
    def is_catching_up(self) -> bool:
        """Whether events that are known to be missing are being requested from the history."""
        if self._gaps.is_silent:
            return False
        return self._must_catch_up or self._catch_up_events is not None or self._gaps.has_gaps

    @property
    def sandboxes(self) -> set[str]:
        """The sandboxes that are known so far."""
        return set(self._gaps.sandboxes)

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event. Raises `HerdError` if the target is unknown or the connection was closed permanently."""
        if not self._is_over:
            await self._start()
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            await self._step()
        return self._ready.popleft()

    async def close(self) -> None:
        """Unsubscribe and stop."""
        self._is_over = True
        self._unsubscribe_commands()
        if self._catch_up_events is not None:
            await self._catch_up_events.aclose()
            self._catch_up_events = None
        await self._feed.close()

    async def _start(self) -> None:
        if not self._feed.started:
            self._feed.start()
            self._unsubscribe_commands = self._gaps.note_commands(self._link)
            await self._feed.listen(*self._target.subjects())
            await self._link.flush()
            self._began_at = self._now()
            self._check_at = self._began_at + (self._limits.check if self._fresh else 0)

    async def _step(self) -> None:
        """Read a part of the history. If it was read, receive an event or wait until work is due, and do that work."""
        if self._catch_up_events is not None:
            await self._catch_up(self._catch_up_events)
            return
        item = await self._feed.next(max(0.0, self._next_due_at() - self._now()))
        if item is ConnectionSignal.CLOSED:
            raise NotReachedError.of(
                Code.UNAVAILABLE, "the broker closed the connection permanently", remedy="check with `sandherd doctor`"
            )
        if item is ConnectionSignal.BACK:
            self._must_catch_up = True
            self._gaps.reconnected()
        elif item is not None:
            self._nothing_received = False
            await self._accept(item)
        if self._link.connected:
            await self._do_due_work()

    def _next_due_at(self) -> float:
        """The time at which the next periodic work is due if nothing is received."""
        if not self._link.connected:
            return self._now() + self._limits.check
        times = [self._check_at]
        if self._must_catch_up:
            times.append(self._catch_up_at)
        if self._ending.is_near or self._gaps.gaps():
            times.append(self._gaps.retry_at)
        return min(times)

    async def _accept(self, event: Event) -> None:
        if not self._target.concerns(event, self._gaps.sandboxes):
            return
        await self._join_if_new(event)
        self._show(self._gaps.order.offer(event))

    async def _join_if_new(self, event: Event) -> None:
        sandbox = self._target.sandbox_in(event)
        if sandbox is not None and await self._join(sandbox) and event.type != SANDBOX_START:
            self._must_catch_up = True

    async def _join(self, sandbox: str) -> bool:
        """Subscribe to a further sandbox of this task. Returns whether it is new."""
        new = self._gaps.adopt(sandbox)
        if new:
            await self._feed.listen(entity_subjects(self._target.project, sandbox))
        return new

    def _show(self, events: list[Event]) -> None:
        for event in events:
            earlier = self._ending.restart() if self._target.restarts(event) else None
            if earlier is not None:
                self._ready.append(earlier)
            if not self._ending.withholds(event):
                self._ready.append(event)
            self._gaps.note(event)

    async def _do_due_work(self) -> None:
        if self._must_catch_up and self._now() >= self._catch_up_at:
            self._must_catch_up = False
            self._catch_up_events = self._gaps.missed_events()
            return
        if self._gaps.is_due():
            for event in await self._gaps.fill():
                await self._accept(event)
        for gap in self._gaps.expired_gaps():
            self.missing.append(gap)
            self._show(self._gaps.order.skip(gap))
            self._gaps.request_at_once()
        if self._now() >= self._check_at:
            await self._check_ended()
        await self._end_if_complete()

    async def _catch_up(self, events: AsyncGenerator[Event]) -> None:
        """Continue to read the history until there is an event to return, or to its end."""
        async for event in events:
            await self._accept(event)
            if self._ready:
                return
        self._catch_up_events = None
        self._failed_catch_ups = self._failed_catch_ups + 1 if self._gaps.is_silent else 0
        if self._failed_catch_ups:
            self._must_catch_up, self._catch_up_at = True, self._now() + self._silence_wait()

    def _silence_wait(self) -> float:
        """Seconds until an unavailable history is requested again. The backoff doubles each time, with jitter."""
        policy = Backoff(10 * self._limits.retry, _MAX_INTERVAL_FACTOR * self._limits.check, jitter=0.5)
        return policy.delay(self._failed_catch_ups - 1)

    async def _check_ended(self) -> None:
        """Check whether the target has ended unnoticed, because a live subscription may lose its final event."""
        self._check_at = self._now() + self._limits.check
        state = await self._current_state()
        self._read_history_when_idle()
        if state in TASK_ENDED or state in SANDBOX_ENDED:
            self._ending.note_ended()
        elif state is not None:
            self._ending.cancel_unless_final()

    def _read_history_when_idle(self) -> None:
        """Read the history, at increasing intervals, if no event was received since the last check."""
        if not self._nothing_received:
            self._next_read_at, self._read_interval = self._now(), self._limits.check
        elif self._now() >= self._next_read_at:
            self._must_catch_up = True
            self._next_read_at = self._now() + self._read_interval
            self._read_interval = min(_MAX_INTERVAL_FACTOR * self._limits.check, 2 * self._read_interval)
        self._nothing_received = True

    async def _current_state(self) -> str | None:
        try:
            status = await self._link.entity_status(self._target)
        except HerdError as error:
            self._handle_unknown_state(error)
            return None
        if status.sandbox is not None and await self._join(status.sandbox):
            self._must_catch_up = True
        return status.state

    def _handle_unknown_state(self, error: HerdError) -> None:
        """Raise the error if the state stays unknown, unless this client has created the target or it has events."""
        unknown = error.problem.code is Code.NOT_FOUND
        if self._fresh or self._gaps.exists or (unknown and self._gaps.is_own):
            return
        max_wait = self._limits.beginning if unknown else self._limits.silence
        if self._now() - self._began_at > max_wait:
            raise error
        self._check_at = self._now() + self._limits.retry

    async def _end_if_complete(self) -> None:
        if self._gaps.gaps() or (self._must_catch_up and not self._gaps.is_silent):
            return
        step = await self._ending.next_step()
        for event in step.found:
            await self._accept(event)
        self._must_catch_up = self._must_catch_up or step.read_history
        if step.is_over:
            await self._finish(step.missing)

    async def _finish(self, gap: MissingRange | None) -> None:
        for event in await self._feed.rest():
            await self._accept(event)
        if gap is not None:
            self.missing.append(gap)
        if self._ending.final is not None:
            self._ready.append(self._ending.final)
        await self.close()
