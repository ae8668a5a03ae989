"""Following a task or a sandbox: heard live, mended from the history, in order per source, to the end.

The broker's live subscription is fast and may lose: while reconnecting, or for a reader that is too slow. Every
source numbers its events without gaps, so a loss shows, and event-ingest is asked for what is missing. With the
history away the live part goes on, and `missing` says what could not be shown.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Final, Self

from sandherd.client.ending import Ending
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.client.link import Link
from sandherd.client.listening import Line, Listener
from sandherd.client.mending import Mender, Patience
from sandherd.client.sequencing import Event, Missing
from sandherd.client.target import Target, entity_subjects
from sandherd.contracts.errors import Code
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED

_LONGEST: Final = 12
"""Maximum number of looks until the history is read again, or asked again when it does not answer."""


class Following:
    """The events of one task or sandbox. Iterate over it; `async with` it to be listening before anything is said."""

    def __init__(self, link: Link, target: Target, *, fresh: bool = False, patience: Patience | None = None) -> None:
        self.missing: list[Missing] = []
        """What could not be shown; empty as long as the history is whole."""
        self._link = link
        self._target = target
        self._fresh = fresh
        self._patience = patience or Patience()
        self._now = asyncio.get_running_loop().time
        self._mender = Mender(link.ask, target, self._patience, self._now, fresh=fresh)
        self._ending = Ending(target, self._mender, self._now)
        # At once, not when it is read: a slow reader must not miss the beginning of a sandbox.
        self._listener = Listener(link, self._join_if_new)
        self._hear_no_commands: Callable[[], None] = lambda: None
        self._ready: deque[Event] = deque()
        self._catching: AsyncGenerator[Event] | None = None
        self._behind = not fresh
        self._catch_at = 0.0
        self._began_at = self._look_at = 0.0
        self._quiet = True
        self._read_again_at, self._read_again_after = 0.0, self._patience.look
        self._silences = 0
        self._over = False

    @property
    def whole(self) -> bool:
        """Whether everything that was said so far was shown."""
        return not self.missing

    @property
    def sandboxes(self) -> set[str]:
        """The sandboxes that were heard of so far."""
        return set(self._mender.sandboxes)

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
        """The next event. Raises `HerdError` if the target is unknown or the connection is gone for good."""
        if not self._over:
            await self._start()
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            await self._step()
        return self._ready.popleft()

    async def close(self) -> None:
        """Hear no more."""
        self._over = True
        self._hear_no_commands()
        if self._catching is not None:
            await self._catching.aclose()
            self._catching = None
        await self._listener.close()

    async def _start(self) -> None:
        if not self._listener.started:
            self._listener.start()
            self._hear_no_commands = self._link.on_command(self._mender.submitted)
            await self._listener.listen(*self._target.subjects())
            await self._link.settle()
            self._began_at = self._now()
            self._look_at = self._began_at + (self._patience.look if self._fresh else 0)

    async def _step(self) -> None:
        """Read a piece of the history, or hear one thing, or wait until something is due; then tend to what is due."""
        if self._catching is not None:
            await self._catch_up(self._catching)
            return
        item = await self._listener.next(max(0.0, self._due() - self._now()))
        if item is Line.GONE:
            raise NotReachedError.of(
                Code.UNAVAILABLE, "the broker closed the connection for good", remedy="see why with `sandherd doctor`"
            )
        if item is Line.BACK:
            self._behind = True
            self._mender.reconnected()
        elif item is not None:
            self._quiet = False
            await self._accept(item)
        if self._link.connected:
            await self._tend()

    def _due(self) -> float:
        """When to tend to things even if nothing is heard."""
        if not self._link.connected:
            return self._now() + self._patience.look
        times = [self._look_at]
        if self._behind:
            times.append(self._catch_at)
        if self._ending.near or self._mender.gaps():
            times.append(self._mender.retry_at)
        return min(times)

    async def _accept(self, event: Event) -> None:
        if not self._target.concerns(event, self._mender.sandboxes):
            return
        await self._join_if_new(event)
        self._show(self._mender.order.offer(event))

    async def _join_if_new(self, event: Event) -> None:
        sandbox = self._target.sandbox_in(event)
        if sandbox is not None and await self._join(sandbox) and event.type != "sandbox.requested":
            self._behind = True

    async def _join(self, sandbox: str) -> bool:
        """Listen to a sandbox of this task, too. Returns whether it is new."""
        new = self._mender.adopt(sandbox)
        if new:
            await self._listener.listen(entity_subjects(self._target.project, sandbox))
        return new

    def _show(self, events: list[Event]) -> None:
        for event in events:
            earlier = self._ending.begin_anew() if self._target.begins(event) else None
            if earlier is not None:
                self._ready.append(earlier)
            if not self._ending.holds(event):
                self._ready.append(event)
            self._mender.note(event)

    async def _tend(self) -> None:
        if self._behind and self._now() >= self._catch_at:
            self._behind = False
            self._catching = self._mender.behind()
            return
        if self._mender.due():
            for event in await self._mender.fill():
                await self._accept(event)
        for gap in self._mender.hopeless():
            self.missing.append(gap)
            self._show(self._mender.order.give_up(gap))
            self._mender.went_on()
        if self._now() >= self._look_at:
            await self._look()
        await self._end_if_whole()

    async def _catch_up(self, catching: AsyncGenerator[Event]) -> None:
        """Read on in the history, until there is something to show."""
        async for event in catching:
            await self._accept(event)
            if self._ready:
                return
        self._catching = None
        self._silences = self._silences + 1 if self._mender.silent else 0
        if self._silences:
            self._behind, self._catch_at = True, self._now() + self._silence_wait()

    def _silence_wait(self) -> float:
        """How long a history that does not answer is left alone: twice as long each time, with jitter."""
        wait: float = 10 * self._patience.retry * 2 ** min(self._silences - 1, 16)
        return min(_LONGEST * self._patience.look, wait) * random.uniform(0.5, 1)

    async def _look(self) -> None:
        """See whether it has ended without our hearing of it: the broker promises nothing to a live subscriber."""
        self._look_at = self._now() + self._patience.look
        state = await self._standing()
        self._read_again_if_quiet()
        if state in TASK_ENDED or state in SANDBOX_ENDED:
            self._ending.notice()
        elif state is not None:
            self._ending.doubt()

    def _read_again_if_quiet(self) -> None:
        """Where nothing was received since the last look, something may be lost: read the history, ever more seldom."""
        if not self._quiet:
            self._read_again_at, self._read_again_after = self._now(), self._patience.look
        elif self._now() >= self._read_again_at:
            self._behind = True
            self._read_again_at = self._now() + self._read_again_after
            self._read_again_after = min(_LONGEST * self._patience.look, 2 * self._read_again_after)
        self._quiet = True

    async def _standing(self) -> str | None:
        try:
            standing = await self._link.standing(self._target)
        except HerdError as error:
            self._doubt(error)
            return None
        if standing.sandbox is not None and await self._join(standing.sandbox):
            self._behind = True
        return standing.state

    def _doubt(self, error: HerdError) -> None:
        """Nobody can tell of the target: an error, unless it was only just submitted, or is heard of anyway."""
        if self._fresh or self._mender.order.reached():
            return
        patience = self._patience.beginning if error.problem.code is Code.NOT_FOUND else self._patience.silence
        if self._now() - self._began_at > patience:
            raise error
        self._look_at = self._now() + self._patience.retry

    async def _end_if_whole(self) -> None:
        if self._mender.gaps() or (self._behind and not self._mender.silent):
            return
        verdict = await self._ending.judge()
        for event in verdict.found:
            await self._accept(event)
        self._behind = self._behind or verdict.look_back
        if verdict.over:
            await self._finish(verdict.missing)

    async def _finish(self, gap: Missing | None) -> None:
        for event in await self._listener.rest():
            await self._accept(event)
        if gap is not None:
            self.missing.append(gap)
        if self._ending.final is not None:
            self._ready.append(self._ending.final)
        await self.close()
