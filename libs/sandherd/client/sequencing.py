"""The order of what is heard: each source's events by `sequence`, each once, with what is missing made visible.

Nothing here waits or asks; `following` does that and decides by what stands here.
"""

import heapq
from dataclasses import dataclass, field
from typing import Any, Final

from sandherd.contracts.envelope import Envelope
from sandherd.contracts.reading import AGENT_SOURCE

Event = Envelope[Any]

_WHOLE: Final = (AGENT_SOURCE, "/sandherd/spawner/", "/sandherd/message-relay/")


def speaks_of_one(source: str) -> bool:
    """Whether everything a source says is about one entity, so that its follower hears every number.

    A sandbox's worker, the spawner's record of a task or sandbox, and the relay's of a message are such sources;
    an instance of the monitor is not: its numbers run over the whole herd.
    """
    return source.startswith(_WHOLE)


@dataclass(frozen=True)
class Missing:
    """Numbers of a source that were not heard, both ends included; `last` is None if its end is not known."""

    source: str
    first: int
    last: int | None


@dataclass
class _Source:
    next: int = 1
    held: dict[int, Event] = field(default_factory=dict)
    highest: int = 0
    numbers: list[int] = field(default_factory=list)
    """A heap of what is held, and of numbers that were shown since: finding the lowest must not look at each."""

    def take(self, event: Event) -> list[Event]:
        if event.sequence >= self.next and event.sequence not in self.held:
            self.held[event.sequence] = event
            self.highest = max(self.highest, event.sequence)
            heapq.heappush(self.numbers, event.sequence)
        return self.release()

    def lowest(self) -> int:
        """The lowest number that is held."""
        while self.numbers[0] not in self.held:
            heapq.heappop(self.numbers)
        return self.numbers[0]

    def release(self) -> list[Event]:
        ready = []
        while self.next in self.held:
            ready.append(self.held.pop(self.next))
            self.next += 1
        return ready


class Sequencer:
    """Takes events as they come, also twice and out of order, and gives them back in their sources' order."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._shared: set[str] = set()

    def offer(self, event: Event) -> list[Event]:
        """What may be shown now that this one is here."""
        if not speaks_of_one(event.source):
            return self._offer_shared(event)
        return self._sources.setdefault(event.source, _Source()).take(event)

    def _offer_shared(self, event: Event) -> list[Event]:
        key = str(event.id)
        if key in self._shared:
            return []
        self._shared.add(key)
        return [event]

    def gaps(self) -> list[Missing]:
        """What is waited for: the numbers between what was shown and what is held."""
        return [
            Missing(name, source.next, source.lowest() - 1) for name, source in self._sources.items() if source.held
        ]

    def highest_held(self, source: str) -> int:
        """The highest number of a source that is here, shown or not."""
        return self._sources[source].highest

    def give_up(self, gap: Missing) -> list[Event]:
        """Go on without the numbers of this gap; what was held behind them may be shown."""
        source = self._sources[gap.source]
        if gap.last is not None:
            source.next = max(source.next, gap.last + 1)
        return source.release()

    def reached(self) -> dict[str, int]:
        """The last number shown of each source that speaks of one entity."""
        return {name: source.next - 1 for name, source in self._sources.items()}
