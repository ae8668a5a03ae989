"""What a follower does about what it did not hear: whom it asks, how often, and when it goes on without."""

from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from sandherd.client.history import Ask, History, SilentHistoryError
from sandherd.client.sequencing import Event, Missing, Sequencer
from sandherd.client.target import (
    REFUSALS,
    SANDBOX_BEGINS,
    SERVICE_TYPES,
    TASK_BEGINS,
    TASK_TYPES,
    Target,
)
from sandherd.contracts.requests import AskEvents

PAGE: Final = 500
_SLOWEST: Final = 10


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for what, in seconds."""

    gap: float = 60.0
    """For an event that the history, which answers, does not have yet."""
    silence: float = 10.0
    """For a history that does not answer, as when it is finding its way back to the broker like everybody else."""
    beginning: float = 2.0
    """When following begins: for a history that does not answer, and for a task that nobody knows yet."""
    look: float = 5.0
    """Between two looks at whether it has ended without our hearing of it."""
    retry: float = 0.1
    """Between two questions about the same gap; doubles, up to `look`."""


class Mender:
    """Knows what was heard of a target, and fills in what was not. `now` is a monotonic clock in seconds."""

    def __init__(
        self, ask: Ask, target: Target, patience: Patience, now: Callable[[], float], *, fresh: bool = False
    ) -> None:
        self.order = Sequencer()
        self.sandboxes: set[str] = {target.entity} if target.kind == "sandbox" else set()
        self.retry_at = 0.0
        self._history = History(ask, now)
        self._target = target
        self._patience = patience
        self._now = now
        self._begun = fresh
        self._tries = 0
        self._noticed: dict[Missing, float] = {}
        self._asked: set[Missing] = set()
        self._held: dict[str, list[tuple[float, int]]] = {}
        self._unread: deque[AskEvents] = deque()
        self._types: dict[str, set[str]] = {}
        self._own: set[str] = set()

    def adopt(self, sandbox: str) -> bool:
        """Count a sandbox as the target's. Returns whether it is new."""
        new = sandbox not in self.sandboxes
        self.sandboxes.add(sandbox)
        return new

    def note(self, event: Event) -> None:
        """Remember that it was shown."""
        self._types.setdefault(event.source, set()).add(event.type)

    def said(self, source: str, types: frozenset[str]) -> bool:
        """Whether a source was heard to say one of these."""
        return bool(self._types.get(source, set()) & types)

    def submitted(self, command: Event) -> None:
        """Take note of a command that was given here: if it submits the target, its refusal is what is waited for."""
        source = self._target.refusal_of(command)
        self._own |= {source} if source is not None else set()

    def refuses(self, event: Event) -> bool:
        """Whether it refuses what was submitted here, whoever else has the name."""
        return event.type in REFUSALS and event.source in self._own

    def ends(self, event: Event) -> bool:
        """Whether it ends the story. What is refused under a name that somebody has is refused beside it."""
        begun = any(types & {TASK_BEGINS, SANDBOX_BEGINS} for types in self._types.values())
        beside = begun and event.type in REFUSALS and not self.refuses(event)
        return self._target.ends(event) and not beside

    def rest_of(self, source: str) -> Missing:
        """What a source said after what was shown, if anything."""
        return Missing(source, self.reached(source) + 1, None)

    def teller(self) -> str:
        """Who says what becomes of the target, as far as that is known."""
        heard = [name for name in self.order.reached() if name.startswith(self._target.source)]
        return heard[-1] if heard else self._target.source

    def reached(self, source: str) -> int:
        """The last number of a source that was shown."""
        return self.order.reached().get(source, 0)

    def reconnected(self) -> None:
        """Forget that the history was silent: so was everybody while the broker was away."""
        self._history.silent_since = None
        self._noticed.clear()

    @property
    def silent(self) -> bool:
        """Whether the history did not answer when it was last asked."""
        return self._history.silent_since is not None

    def gaps(self) -> list[Missing]:
        """What is missing now, with a note of since when."""
        gaps = self.order.gaps()
        self._note_held({gap.source for gap in gaps})
        self._noticed = {gap: self._noticed.get(gap, self._since(gap)) for gap in gaps}
        self._asked &= self._noticed.keys()
        return gaps

    def _note_held(self, sources: set[str]) -> None:
        """Remember when each source was first seen to go beyond a number, at most once in `retry` seconds."""
        self._held = {source: marks for source, marks in self._held.items() if source in sources}
        for source in sources:
            marks = self._held.setdefault(source, [])
            highest = self.order.highest_held(source)
            late = not marks or self._now() - marks[-1][0] >= self._patience.retry
            if late and (not marks or highest > marks[-1][1]):
                marks.append((self._now(), highest))

    def _since(self, gap: Missing) -> float:
        """Since when numbers behind a gap are here: it has been missing as long, however many gaps come before it."""
        marks = self._held.get(gap.source, [])
        return next((at for at, highest in marks if gap.last is not None and highest > gap.last), self._now())

    def due(self) -> bool:
        """Whether it is time to ask for what is missing."""
        return bool(self.gaps()) and self._now() >= self.retry_at

    def hopeless(self) -> list[Missing]:
        """The gaps to go on without."""
        return [
            gap for gap in self.gaps() if (self.silent or gap in self._asked) and self.given_up_on(self._noticed[gap])
        ]

    def went_on(self) -> None:
        """A gap was given up: what is missing behind it may be asked for at once."""
        self._tries = 0
        self.retry_at = self._now()

    def given_up_on(self, since: float) -> bool:
        """Whether something has been waited for long enough, as the history answers or not."""
        silent = self._history.silent_since
        if silent is not None:
            limit = self._patience.silence if self._begun else self._patience.beginning
            # What is only late, and not lost, still gets a moment of its own.
            return self._now() - silent > limit and self._now() - since > _SLOWEST * self._patience.retry
        return self._now() - since > self._patience.gap

    def wait(self) -> None:
        """Put off the next question, twice as long as the last time, and never longer than to the next look."""
        self._tries = self._tries + 1 if self._now() < self.retry_at + self._patience.look else 1
        self.retry_at = self._now() + min(self._patience.look, self._patience.retry * 2 ** min(self._tries - 1, 16))

    async def fill(self) -> list[Event]:
        """Ask for every gap once. Returns what was found."""
        self.wait()
        found: list[Event] = []
        try:
            for gap in self.gaps():
                found += await self._history.within(gap)
                self._asked.add(gap)
        except SilentHistoryError:
            return found
        return found

    async def tail(self, source: str) -> list[Event]:
        """What a source has said since it was last heard."""
        self.wait()
        request = AskEvents(source=source, after_sequence=self.reached(source), limit=PAGE)
        try:
            return [event async for event in self._history.events(request)]
        except SilentHistoryError:
            return []

    async def has(self, event: Event) -> bool:
        """Whether the history has an event, and so all that was said before."""
        try:
            return await self._history.has(event)
        except SilentHistoryError:
            return False

    async def behind(self) -> AsyncGenerator[Event]:
        """All events that may have been missed: all from the beginning at first, later those since the last time.

        Ends early if the history does not answer: then `silent` is set, and the next call continues with the page that
        was not answered, without reading what was read.
        """
        self._unread = self._unread or deque(self._questions())
        try:
            while self._unread:
                events, following = await self._history.page(self._unread[0])
                self._unread.popleft()
                if following is not None:
                    self._unread.appendleft(following)
                for event in events:
                    yield event
            self._begun = True
        except SilentHistoryError:
            return

    def _questions(self) -> list[AskEvents]:
        if not self._begun:
            return self._from_the_beginning()
        reached = self.order.reached()
        sources = dict.fromkeys([*reached, *self._target.sources(self.sandboxes), *sorted(self._own)])
        since = [AskEvents(source=name, after_sequence=reached.get(name, 0), limit=PAGE) for name in sources]
        said = [AskEvents(entity=name, types=list(SERVICE_TYPES), limit=PAGE) for name in sorted(self.sandboxes)]
        if self._target.kind == "task":
            said.append(AskEvents(entity=self._target.entity, types=list(TASK_TYPES), limit=PAGE))
        return since + said

    def _from_the_beginning(self) -> list[AskEvents]:
        if self._target.kind == "sandbox":
            return [AskEvents(entity=self._target.entity, limit=PAGE)]
        own = [AskEvents(task=self._target.entity, limit=PAGE)]
        return own + [AskEvents(entity=sandbox, limit=PAGE) for sandbox in sorted(self.sandboxes)]
