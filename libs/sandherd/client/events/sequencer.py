"""Orders received events by the `sequence` of their source, drops duplicates, and reports gaps.

Nothing here waits or sends requests; the module `follower` does.
"""

import heapq
from dataclasses import dataclass, field
from typing import Any, Final

from sandherd.contracts.decoder import AGENT_SOURCE
from sandherd.contracts.envelope import Envelope

Event = Envelope[Any]

_SINGLE_ENTITY_SOURCES: Final = (AGENT_SOURCE, "/sandherd/spawner/", "/sandherd/message-relay/")


def has_single_entity(source: str) -> bool:
    """Whether all events of a source are about one entity, so that its follower receives every sequence number.

    Such sources are a sandbox's worker, the spawner's record of a task or sandbox, and the relay's record of a message.
    An instance of the monitor is not, because its sequence covers the whole herd.
    """
    return source.startswith(_SINGLE_ENTITY_SOURCES)


@dataclass(frozen=True)
class MissingRange:
    """Sequence numbers of a source that were not received, both ends included; `last` is None if unknown."""

    source: str
    first: int
    last: int | None


@dataclass
class _Source:
    """The state of one source: the next sequence number to release, and the events after it."""

    next: int = 1
    held: dict[int, Event] = field(default_factory=dict)
    highest: int = 0
    numbers: list[int] = field(default_factory=list)
    """A heap of the held numbers, and of some released ones, to find the lowest held number without a scan."""

    def add(self, event: Event) -> list[Event]:
        if event.sequence >= self.next and event.sequence not in self.held:
            self.held[event.sequence] = event
            self.highest = max(self.highest, event.sequence)
            heapq.heappush(self.numbers, event.sequence)
        return self.release()

    def lowest(self) -> int:
        """The lowest held number."""
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
    """Accepts events in any order, also duplicates, and returns each once, in the order of its source."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._shared_ids: set[str] = set()
        """The ids of received events whose sources are about several entities."""

    def offer(self, event: Event) -> list[Event]:
        """The events that can be shown after this one was received."""
        if not has_single_entity(event.source):
            return self._offer_shared(event)
        return self._sources.setdefault(event.source, _Source()).add(event)

    def _offer_shared(self, event: Event) -> list[Event]:
        key = str(event.id)
        if key in self._shared_ids:
            return []
        self._shared_ids.add(key)
        return [event]

    def gaps(self) -> list[MissingRange]:
        """The missing ranges between shown and held events."""
        return [
            MissingRange(name, source.next, source.lowest() - 1)
            for name, source in self._sources.items()
            if source.held
        ]

    def highest_received(self, source: str) -> int:
        """The highest received sequence of a source, shown or not."""
        return self._sources[source].highest

    def skip(self, gap: MissingRange) -> list[Event]:
        """Continue without the missing events of this gap. Returns the held events that can be shown now."""
        source = self._sources[gap.source]
        if gap.last is not None:
            source.next = max(source.next, gap.last + 1)
        return source.release()

    def reached(self) -> dict[str, int]:
        """The last shown sequence of each source that is about one entity."""
        return {name: source.next - 1 for name, source in self._sources.items()}
