"""Detects the end: the final event and all events before it were received, or waiting for them timed out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sandherd.client.events.gap_filler import GapFiller
from sandherd.client.events.sequencer import Event, MissingRange
from sandherd.client.events.target import Target


@dataclass(frozen=True, kw_only=True)
class CompletionStep:
    """The next action regarding the end."""

    over: bool = False
    missing: MissingRange | None = None
    """Events that are missing at the end, if any."""
    found: list[Event] = field(default_factory=list)
    """Events to show before the next decision."""
    read_history: bool = False
    """Whether to request all possibly missed events from the history."""


class CompletionDetector:
    """Holds the final event back until the events before it were shown."""

    def __init__(self, target: Target, gaps: GapFiller, now: Callable[[], float]) -> None:
        self.final: Event | None = None
        self._target = target
        self._gaps = gaps
        self._now = now
        self._since: float | None = None
        self._confirmed = False
        self._history_read = False

    @property
    def near(self) -> bool:
        """Whether the target has ended, and only remaining events are awaited."""
        return self._since is not None

    def notice(self) -> None:
        """Note that the target has ended by its live state."""
        self._since = self._now() if self._since is None else self._since

    def withholds(self, event: Event) -> bool:
        """Whether this is the final event, which is held and shown last."""
        if self.final is not None or not self._gaps.ends(event):
            return False
        self.final = event
        self.notice()
        return True

    def restart(self) -> Event | None:
        """The target continues or its name is reused. Returns the earlier final event; our own refusal stays final."""
        if self.final is not None and self._gaps.refuses(self.final):
            return None
        earlier, self.final, self._since = self.final, None, None
        self._confirmed = self._history_read = False
        return earlier

    def cancel_unless_final(self) -> None:
        """The target still runs by its live state: drop the suspected end, unless the final event was received."""
        if self.final is None:
            self._since = None

    async def next_step(self) -> CompletionStep:
        """The next action, when there is no gap."""
        if self.final is not None:
            return await self._with(self.final)
        return self._step_without_event(self._since) if self._since is not None else CompletionStep()

    async def _with(self, final: Event) -> CompletionStep:
        needed = self._target.before_end(final)
        if needed is None or self._confirmed or self._gaps.received_from(*needed):
            # A source without any received event leaves no gap; so the history is requested again, if it replies.
            verdict = CompletionStep(over=self._history_read, read_history=not self._history_read)
            self._history_read = True
            return verdict
        return await self._seek_tail(final, needed[0]) if self._now() >= self._gaps.retry_at else CompletionStep()

    async def _seek_tail(self, final: Event, source: str) -> CompletionStep:
        self._confirmed = await self._gaps.has(final)
        found = await self._gaps.tail(source)
        if self._confirmed or found or not self._gaps.is_expired(self._since or self._now()):
            return CompletionStep(found=found)
        return CompletionStep(over=True, missing=self._gaps.rest_of(source))

    def _step_without_event(self, since: float) -> CompletionStep:
        """The next action if the target has ended but its final event was not received."""
        if self._gaps.is_expired(since):
            return CompletionStep(over=True, missing=self._gaps.rest_of(self._gaps.state_source()))
        if self._now() < self._gaps.retry_at:
            return CompletionStep()
        self._gaps.wait()
        return CompletionStep(read_history=True)
