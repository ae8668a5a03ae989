"""Detects the end of a target's events: all were received up to the final event, or waiting for them timed out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sandherd.client.events.gap_filler import GapFiller
from sandherd.client.events.sequencer import Event, MissingRange
from sandherd.client.events.target import Target


@dataclass(frozen=True, kw_only=True)
class CompletionStep:
    """The next action of a follower to complete the events of an ended target."""

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

    def note_ended(self) -> None:
        """Note that the target has ended, from its live state or its final event."""
        self._since = self._now() if self._since is None else self._since

    def withholds(self, event: Event) -> bool:
        """Whether this is the final event, which is held and shown last."""
        if self.final is not None or not self._gaps.ends(event):
            return False
        self.final = event
        self.note_ended()
        return True

    def restart(self) -> Event | None:
        """Reset, because the target continues or its name is reused. Returns the final event from before.

        A refusal of this client's own command remains final: then nothing is reset, and None is returned.
        """
        if self.final is not None and self._gaps.refuses(self.final):
            return None
        earlier, self.final, self._since = self.final, None, None
        self._confirmed = self._history_read = False
        return earlier

    def cancel_unless_final(self) -> None:
        """Reset the noted end, because the live state shows a running target, unless the final event was received."""
        if self.final is None:
            self._since = None

    async def next_step(self) -> CompletionStep:
        """The next action, when there is no gap."""
        if self.final is not None:
            return await self._step_with_event(self.final)
        return self._step_without_event(self._since) if self._since is not None else CompletionStep()

    async def _step_with_event(self, final: Event) -> CompletionStep:
        needed = self._target.before_end(final)
        if needed is None or self._confirmed or self._gaps.received_from(*needed):
            # If no event of a source was received, there is no gap to show this, so the history is read again.
            step = CompletionStep(over=self._history_read, read_history=not self._history_read)
            self._history_read = True
            return step
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
