"""How a story ends: when the last event, and what was said before it, are here, or were waited for in vain."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sandherd.client.mending import Mender
from sandherd.client.sequencing import Event, Missing
from sandherd.client.target import Target


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is to be done about the end."""

    over: bool = False
    missing: Missing | None = None
    """What is left out, if it is over without it."""
    found: list[Event] = field(default_factory=list)
    """Events to be shown before anything else is decided."""
    look_back: bool = False
    """Whether to ask the history for everything that may have been said unheard."""


class Ending:
    """Holds the last event back until what was said before it was shown."""

    def __init__(self, target: Target, mender: Mender, now: Callable[[], float]) -> None:
        self.final: Event | None = None
        self._target = target
        self._mender = mender
        self._now = now
        self._since: float | None = None
        self._confirmed = False
        self._looked_back = False

    @property
    def near(self) -> bool:
        """Whether it has ended, and only the rest of the story is waited for."""
        return self._since is not None

    def notice(self) -> None:
        """It has ended, as its live state says."""
        self._since = self._now() if self._since is None else self._since

    def holds(self, event: Event) -> bool:
        """Whether this is the last event, which is shown at the very end."""
        if self.final is not None or not self._mender.ends(event):
            return False
        self.final = event
        self.notice()
        return True

    def begin_anew(self) -> Event | None:
        """It goes on, or another of its name begins. Returns the end before; one's own refusal stays the end."""
        if self.final is not None and self._mender.refuses(self.final):
            return None
        earlier, self.final, self._since = self.final, None, None
        self._confirmed = self._looked_back = False
        return earlier

    def doubt(self) -> None:
        """It has not ended, as its live state says: what looked like an end that was not heard is none."""
        if self.final is None:
            self._since = None

    async def judge(self) -> Verdict:
        """What is to be done now, when no gap is left."""
        if self.final is not None:
            return await self._with(self.final)
        return self._unheard(self._since) if self._since is not None else Verdict()

    async def _with(self, final: Event) -> Verdict:
        needed = self._target.before_end(final)
        if needed is None or self._confirmed or self._mender.said(*needed):
            # A source that was not heard at all leaves no gap; so the history is asked once more, if it answers.
            verdict = Verdict(over=self._looked_back, look_back=not self._looked_back)
            self._looked_back = True
            return verdict
        return await self._seek_tail(final, needed[0]) if self._now() >= self._mender.retry_at else Verdict()

    async def _seek_tail(self, final: Event, source: str) -> Verdict:
        self._confirmed = await self._mender.has(final)
        found = await self._mender.tail(source)
        if self._confirmed or found or not self._mender.given_up_on(self._since or self._now()):
            return Verdict(found=found)
        return Verdict(over=True, missing=self._mender.rest_of(source))

    def _unheard(self, since: float) -> Verdict:
        """It has ended, and the event that says so is not here."""
        if self._mender.given_up_on(since):
            return Verdict(over=True, missing=self._mender.rest_of(self._mender.teller()))
        if self._now() < self._mender.retry_at:
            return Verdict()
        self._mender.wait()
        return Verdict(look_back=True)
