"""The segments of a day that is not over: indexes of words, each for a range of ids that hardly grows any more.

Nearly all new events have greater ids than all segments. So storing one takes a comparison for each segment, but no
change of an index. Segments are merged by their size: their number, and how often an event is indexed again, are
proportional to the logarithm of the number of events. Any segment may be missing: a search scans the ranges without
one. Pure.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self
from uuid import UUID

from event_ingest.search_texts import SEARCHED_TYPES

MIN_EVENTS: Final = 10_000
"""A segment is created when this number of events is in no segment. A search scans them in 20 to 130 ms."""
MERGE_SIZE: Final = 4
"""This number of segments of about the same size is merged. A larger number makes searches slower; with a smaller one,
events are indexed again more often."""
NAME_PATTERN: Final = "^events_[0-9]{8}_words_[0-9a-f]{12}_[0-9a-f]{12}_[0-9]+$"
"""A regular expression for the names of segments, for statements."""
_NAME_PARTS: Final = re.compile(r"(events_\d{8})_words_([0-9a-f]{12})_([0-9a-f]{12})_(\d+)")
_TIME_SHIFT: Final = 80
"""A UUIDv7 begins with 48 bits of milliseconds."""
_LAST_ID: Final = UUID("ffffffff-ffff-ffff-ffff-ffffffffffff")
_TYPES: Final = ", ".join(f"'{name}'" for name in SEARCHED_TYPES)


@dataclass(frozen=True, slots=True)
class WordSegment:
    """An index of words for ids from `first` up to but not including `end`. Both are the first id of a millisecond."""

    partition: str
    first: UUID
    end: UUID
    events: int
    """The number of events of all types in the range when it was created."""

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The segment with this name; None for another index."""
        match = _NAME_PARTS.fullmatch(name)
        if match is None:
            return None
        first, end = (UUID(int=int(text, 16) << _TIME_SHIFT) for text in match.group(2, 3))
        return cls(match[1], first, end, int(match[4]))

    @property
    def name(self) -> str:
        """The name of its index: at most 63 characters."""
        first, end = (f"{milliseconds_of(id_):012x}" for id_ in (self.first, self.end))
        return f"{self.partition}_words_{first}_{end}_{self.events}"

    @property
    def condition(self) -> str:
        """The condition of the index on ids. Postgres can use the index for a statement with the same condition."""
        return f"id < '{self.end}' and id >= '{self.first}'"

    @property
    def statement(self) -> str:
        """The statement that creates the index. Postgres tests conditions in order: most new events fail the first."""
        return (
            f"create index concurrently {self.name} on {self.partition} "
            f"using gin (event_words(project, entity, type, envelope)) where {self.condition} and type in ({_TYPES})"
        )

    def contains(self, other: "WordSegment") -> bool:
        """Whether this segment contains all ids of another one."""
        return self.partition == other.partition and self.first <= other.first and other.end <= self.end


class IdRange(NamedTuple):
    """A range of ids of a partition, and the segment that contains it, if there is one."""

    first: UUID | None
    before: UUID | None
    segment: WordSegment | None


def id_at(milliseconds: int) -> UUID:
    """The first id of a millisecond since 1970."""
    return UUID(int=milliseconds << _TIME_SHIFT)


def milliseconds_of(id_: UUID) -> int:
    """The time in an id, in milliseconds since 1970."""
    return id_.int >> _TIME_SHIFT


def id_ranges(segments: Sequence[WordSegment], start: UUID | None, before: UUID | None) -> Iterator[IdRange]:
    """The ranges to search in a partition, the newest first: each id from `start` to before `before` is in exactly one.

    Segments may overlap, and leave gaps.
    """
    top = _LAST_ID if before is None else before  # ids from `top` on are in the ranges so far
    while start is None or start < top:
        range_end = None if top == _LAST_ID else top
        covering = [segment for segment in segments if segment.first < top <= segment.end]
        if covering:
            widest = min(covering, key=lambda segment: segment.first)
            yield IdRange(widest.first, range_end, widest)
            top = widest.first
        else:
            floor = max((segment.end for segment in segments if segment.end < top), default=start)
            yield IdRange(floor, range_end, None)
            if floor is None:
                return
            top = floor


def indexed_until(segments: Sequence[WordSegment], start: UUID) -> UUID:
    """The first id from `start` on that is in no segment."""
    for segment in sorted(segments, key=lambda segment: segment.first):
        if segment.first <= start < segment.end:
            start = segment.end
    return start


def merge(segments: Sequence[WordSegment], new: WordSegment) -> WordSegment:
    """The segment to create in place of `new`, which follows the other segments without a gap.

    It includes the preceding segments that are smaller, and those of the same size if there are `MERGE_SIZE` with it.
    """
    preceding = sorted((segment for segment in segments if segment.end <= new.first), key=lambda segment: segment.first)
    while preceding:
        count = 0  # the number of preceding segments to include
        while count < len(preceding) and _size(preceding[-1 - count]) == _size(new):
            count += 1
        if _size(preceding[-1]) < _size(new):
            count = 1
        elif count < MERGE_SIZE - 1:
            break
        for segment in preceding[-count:]:
            new = WordSegment(new.partition, min(segment.first, new.first), new.end, new.events + segment.events)
        del preceding[-count:]
    return new


def redundant_segments(segments: Sequence[WordSegment]) -> list[WordSegment]:
    """The segments whose ids are all in another segment: a merge has replaced them."""
    ordered = sorted(segments, key=lambda segment: (segment.first.int, -segment.end.int, segment.events))
    return [
        segment for index, segment in enumerate(ordered) if any(other.contains(segment) for other in ordered[:index])
    ]


def _size(segment: WordSegment) -> int:
    """The size of a segment as an exponent of `MERGE_SIZE`."""
    size, events = 0, segment.events // MIN_EVENTS
    while events >= MERGE_SIZE:
        size, events = size + 1, events // MERGE_SIZE
    return size
