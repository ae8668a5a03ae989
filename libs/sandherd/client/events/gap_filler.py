"""Fills a follower's gaps from the history: decides which events to request, how often, and when to give up."""

from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from sandherd.backoff import Backoff
from sandherd.client.events.history import History, SendRequest, SilentHistoryError
from sandherd.client.events.protocols import HerdConnection
from sandherd.client.events.sequencer import Event, MissingRange, Sequencer
from sandherd.client.events.target import REFUSALS, SANDBOX_START, SERVICE_TYPES, TASK_START, TASK_TYPES, Target
from sandherd.contracts.events.task import TaskRefused
from sandherd.contracts.requests import ListEvents

PAGE: Final = 500
_MIN_RETRIES: Final = 10


@dataclass(frozen=True, kw_only=True)
class FollowLimits:
    """Time limits and intervals of a follower, in seconds."""

    gap: float = 60.0
    """Maximum wait for an event that the history does not have yet, although it replies."""
    silence: float = 10.0
    """Maximum wait for an unavailable history, for example while it reconnects to the broker."""
    beginning: float = 2.0
    """Maximum wait at the beginning: for an unavailable history, and for a task that is not known yet."""
    check: float = 5.0
    """Interval between checks of the target's state, in case its final event was not received."""
    retry: float = 0.1
    """Interval between requests for the same gap. It doubles each time, up to `check`."""


class GapFiller:
    """Tracks the received events of a target, and requests missing ones. `now` is a monotonic clock in seconds."""

    def __init__(
        self, send: SendRequest, target: Target, limits: FollowLimits, now: Callable[[], float], *, fresh: bool = False
    ) -> None:
        self.order = Sequencer()
        self.sandboxes: set[str] = {target.entity} if target.kind == "sandbox" else set()
        self.retry_at = 0.0
        self._history = History(send, now)
        self._target = target
        self._limits = limits
        self._backoff = Backoff(limits.retry, limits.check, jitter=0)
        self._now = now
        self._has_begun = fresh
        self._attempts = 0
        self._missing_since: dict[MissingRange, float] = {}
        self._requested: set[MissingRange] = set()
        self._progress: dict[str, list[tuple[float, int]]] = {}
        self._pending_requests: deque[ListEvents] = deque()
        self._types_by_source: dict[str, set[str]] = {}
        self._own_commands: set[str] = set()
        """The ids of this client's commands that create the target, and the sources of their refusals."""
        self.is_own = self.exists = False
        """Whether this client has created the target, and whether an event shows that it exists."""

    def adopt(self, sandbox: str) -> bool:
        """Add a sandbox to the target. Returns whether it is new."""
        new = sandbox not in self.sandboxes
        self.sandboxes.add(sandbox)
        return new

    def note(self, event: Event) -> None:
        """Note that the event was shown."""
        self._types_by_source.setdefault(event.source, set()).add(event.type)
        self.exists = self.exists or self._target.is_shown_by(event)

    def received_from(self, source: str, types: frozenset[str]) -> bool:
        """Whether an event of one of these types was received from a source."""
        return bool(self._types_by_source.get(source, set()) & types)

    def _note_own_command(self, command: Event) -> None:
        """Note a command of this client. If it creates the target, its refusal ends the target."""
        source = self._target.refusal_of(command)
        self._own_commands |= {source, str(command.id)} if source is not None else set()

    def note_commands(self, link: HerdConnection) -> Callable[[], None]:
        """Note earlier and later commands of this client that create the target. Returns a function that stops this.

        If there are several earlier commands, a refusal of one does not end the target: another may be accepted.
        """
        ids = link.creations.of(self._target.kind, self._target.entity)
        self.is_own = bool(ids)
        if len(ids) == 1:
            self._own_commands |= {f"{self._target.source}/{ids[0].hex}", str(ids[0])}
        return link.on_command(self._note_own_command)

    def refuses(self, event: Event) -> bool:
        """Whether the event refuses a command of this client. Then the name may belong to another task or sandbox."""
        command = getattr(event.data, "command_id", None)
        return event.type in REFUSALS and (event.source in self._own_commands or command in self._own_commands)

    def ends(self, event: Event) -> bool:
        """Whether this is the final event of the target. The refusal of another client's command does not end it."""
        has_started = any(types & {TASK_START, SANDBOX_START} for types in self._types_by_source.values())
        # `task.refused` for a submission means that another task has the name, or that the command is invalid.
        in_use = has_started or event.type == TaskRefused.type
        of_another_command = in_use and event.type in REFUSALS and not self.refuses(event)
        return self._target.ends(event) and not of_another_command

    def rest_of(self, source: str) -> MissingRange:
        """The range of events of a source after the last one that was shown. Its end is not known."""
        return MissingRange(source, self.reached(source) + 1, None)

    def state_source(self) -> str:
        """The source of the target's state events, as far as it is known."""
        reached = [name for name in self.order.reached() if name.startswith(self._target.source)]
        return reached[-1] if reached else self._target.source

    def reached(self, source: str) -> int:
        """The sequence of the last event of a source that was shown."""
        return self.order.reached().get(source, 0)

    def reconnected(self) -> None:
        """Reset the silence of the history and the age of gaps, because no reply arrives while disconnected."""
        self._history.silent_since = None
        self._missing_since.clear()

    @property
    def is_silent(self) -> bool:
        """Whether the history did not reply to the last request."""
        return self._history.silent_since is not None

    @property
    def has_gaps(self) -> bool:
        """Whether there are gaps now."""
        return bool(self.order.gaps())

    def gaps(self) -> list[MissingRange]:
        """The current gaps. Also notes since when each is missing."""
        gaps = self.order.gaps()
        self._note_progress({gap.source for gap in gaps})
        self._missing_since = {gap: self._missing_since.get(gap, self._since(gap)) for gap in gaps}
        self._requested &= self._missing_since.keys()
        return gaps

    def _note_progress(self, sources: set[str]) -> None:
        """Record when each source's highest sequence grew, at most once per `retry` seconds."""
        self._progress = {source: growth for source, growth in self._progress.items() if source in sources}
        for source in sources:
            growth = self._progress.setdefault(source, [])
            highest = self.order.highest_received(source)
            is_new_interval = not growth or self._now() - growth[-1][0] >= self._limits.retry
            if is_new_interval and (not growth or highest > growth[-1][1]):
                growth.append((self._now(), highest))

    def _since(self, gap: MissingRange) -> float:
        """The time at which an event after the gap was first received. It does not depend on gaps before it."""
        growth = self._progress.get(gap.source, [])
        return next((at for at, highest in growth if gap.last is not None and highest > gap.last), self._now())

    def is_due(self) -> bool:
        """Whether it is time to request missing events."""
        return bool(self.gaps()) and self._now() >= self.retry_at

    def expired_gaps(self) -> list[MissingRange]:
        """The gaps that are given up, because their time limit has passed."""
        return [
            gap
            for gap in self.gaps()
            if (self.is_silent or gap in self._requested) and self.is_expired(self._missing_since[gap])
        ]

    def request_at_once(self) -> None:
        """Request later gaps at once, because a gap was given up."""
        self._attempts = 0
        self.retry_at = self._now()

    def is_expired(self, since: float) -> bool:
        """Whether the time limit for a missing event has passed; it depends on whether the history replies."""
        silent_since = self._history.silent_since
        if silent_since is not None:
            limit = self._limits.silence if self._has_begun else self._limits.beginning
            # This also gives an event some time that is only late, and not lost.
            return self._now() - silent_since > limit and self._now() - since > _MIN_RETRIES * self._limits.retry
        return self._now() - since > self._limits.gap

    def delay_next_request(self) -> None:
        """Set the time of the next request. The delay doubles each time, up to `check`."""
        self._attempts = self._attempts + 1 if self._now() < self.retry_at + self._limits.check else 1
        self.retry_at = self._now() + self._backoff.delay(self._attempts - 1)

    async def fill(self) -> list[Event]:
        """Request every gap once. Returns the events that were found."""
        self.delay_next_request()
        events: list[Event] = []
        try:
            for gap in self.gaps():
                events += await self._history.within(gap)
                self._requested.add(gap)
        except SilentHistoryError:
            return events
        return events

    async def events_after_shown(self, source: str) -> list[Event]:
        """The events of a source after the last one that was shown."""
        self.delay_next_request()
        request = ListEvents(source=source, after_sequence=self.reached(source), limit=PAGE)
        try:
            return [event async for event in self._history.events(request)]
        except SilentHistoryError:
            return []

    async def has(self, event: Event) -> bool:
        """Whether the history has an event and all events before it."""
        try:
            return await self._history.has(event)
        except SilentHistoryError:
            return False

    async def missed_events(self) -> AsyncGenerator[Event]:
        """All events that may have been missed: at first those from the beginning, later those since the last call.

        Ends early if the history does not reply. Then `is_silent` is true, and the next call continues with the page
        that is missing.
        """
        self._pending_requests = self._pending_requests or deque(self._next_requests())
        try:
            while self._pending_requests:
                events, following = await self._history.page(self._pending_requests[0])
                self._pending_requests.popleft()
                if following is not None:
                    self._pending_requests.appendleft(following)
                for event in events:
                    yield event
            self._has_begun = True
        except SilentHistoryError:
            return

    def _next_requests(self) -> list[ListEvents]:
        if not self._has_begun:
            return self._from_the_beginning()
        reached, services = self.order.reached(), list(SERVICE_TYPES)
        sources = dict.fromkeys([*reached, *self._target.sources(self.sandboxes), *sorted(self._own_commands)])
        since = [ListEvents(source=name, after_sequence=reached.get(name, 0), limit=PAGE) for name in sources]
        by_services = [ListEvents(entity=name, types=services, limit=PAGE) for name in sorted(self.sandboxes)]
        if self._target.kind == "task":
            by_services.append(ListEvents(entity=self._target.entity, types=list(TASK_TYPES), limit=PAGE))
        return since + by_services

    def _from_the_beginning(self) -> list[ListEvents]:
        if self._target.kind == "sandbox":
            return [ListEvents(entity=self._target.entity, limit=PAGE)]
        of_task = [ListEvents(task=self._target.entity, limit=PAGE)]
        return of_task + [ListEvents(entity=sandbox, limit=PAGE) for sandbox in sorted(self.sandboxes)]
