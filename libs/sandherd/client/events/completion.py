"""Detects the end of a target's events: all before the final event were received, or the wait for them timed out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sandherd.client.events.gap_filler import GapFiller
from sandherd.client.events.sequencer import Event, MissingRange
from sandherd.client.events.target import Target


@dataclass(frozen=True, kw_only=True)
class CompletionStep:
    """The next action of a follower to complete the events of an ended target."""

    is_over: bool = False
    missing: MissingRange | None = None
    """The events that are missing at the end; None if there are none."""
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
        self._ended_at: float | None = None
        self._all_stored = False
        self._history_read = False

    @property
    def is_near(self) -> bool:
        """Whether the target has ended, and only its remaining events are awaited."""
        return self._ended_at is not None

    def note_ended(self) -> None:
        """Note that the target has ended, from its live state or its final event."""
        self._ended_at = self._now() if self._ended_at is None else self._ended_at

    def withholds(self, event: Event) -> bool:
        """Whether this is the final event, which is held and shown last."""
        if self.final is not None or not self._gaps.ends(event):
            return False
        self.final = event
        self.note_ended()
        return True

    def restart(self) -> Event | None:
        """Reset, because the target continues or its name is reused. Returns the previous final event.

        If that event refuses a command of this client, it remains final: nothing is reset, and None is returned.
        """
        if self.final is not None and self._gaps.refuses(self.final):
            return None
        earlier, self.final, self._ended_at = self.final, None, None
        self._all_stored = self._history_read = False
        return earlier

    def cancel_unless_final(self) -> None:
        """Reset the noted end, because the live state shows a running target, unless the final event was received."""
        if self.final is None:
            self._ended_at = None

    async def next_step(self) -> CompletionStep:
        """The next action, when there is no gap."""
        if self.final is not None:
            return await self._step_with_event(self.final)
        return self._step_without_event(self._ended_at) if self._ended_at is not None else CompletionStep()

    async def _step_with_event(self, final: Event) -> CompletionStep:
        required = self._target.before_end(final)
        if required is None or self._all_stored or self._gaps.received_from(*required):
            # The history is read again, because a source of which no event was received has no gap.
            step = CompletionStep(is_over=self._history_read, read_history=not self._history_read)
            self._history_read = True
            return step
        return (
            await self._request_remaining(final, required[0])
            if self._now() >= self._gaps.retry_at
            else CompletionStep()
        )

    async def _request_remaining(self, final: Event, source: str) -> CompletionStep:
        self._all_stored = await self._gaps.has(final)
        events = await self._gaps.events_after_shown(source)
        if self._all_stored or events or not self._gaps.is_expired(self._ended_at or self._now()):
            return CompletionStep(found=events)
        return CompletionStep(is_over=True, missing=self._gaps.rest_of(source))

    def _step_without_event(self, since: float) -> CompletionStep:
        """The next action if the target has ended but its final event was not received."""
        if self._gaps.is_expired(since):
            return CompletionStep(is_over=True, missing=self._gaps.rest_of(self._gaps.state_source()))
        if self._now() < self._gaps.retry_at:
            return CompletionStep()
        self._gaps.delay_next_request()
        return CompletionStep(read_history=True)
