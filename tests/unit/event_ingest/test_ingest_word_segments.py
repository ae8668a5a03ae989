"""The segments of a day's words: which are merged, and which ranges of ids a search reads with which segment."""

import random
from itertools import pairwise
from uuid import UUID

import pytest

from event_ingest.search_texts import SEARCHED_TYPES
from event_ingest.word_segment_indexes import seconds_until_check
from event_ingest.word_segments import (
    MERGE_SIZE,
    MIN_EVENTS,
    WordSegment,
    id_at,
    id_ranges,
    indexed_until,
    merge,
    redundant_segments,
)

PART = "events_20261129"
DAY = 1_795_910_400_000


def segment(first: int, end: int, events: int = MIN_EVENTS) -> WordSegment:
    return WordSegment(PART, id_at(DAY + first), id_at(DAY + end), events)


def test_name_has_what_is_known_of_a_segment() -> None:
    """A segment can be read from its name, which Postgres does not truncate. Other names are not segments."""
    one = segment(0, 86_400_000, 999_999_999)
    assert WordSegment.parse(one.name) == one
    assert len(one.name) <= 63
    for name in ("events_20261129_of_words", "events_20261129_pkey", f"{one.name}_ccnew", one.name[:-1] + "x"):
        assert WordSegment.parse(name) is None
    assert one.condition in one.statement
    assert all(f"'{name}'" in one.statement for name in SEARCHED_TYPES)


@pytest.mark.parametrize("seed", range(50))
def test_ranges_have_each_id_once(seed: int) -> None:
    """For any segments, the ranges are adjacent, the newest first, and each is within its segment."""
    draw = random.Random(seed)
    segments = []
    for _ in range(draw.randrange(7)):
        first, end = sorted(draw.sample(range(40), 2))
        segments.append(segment(first, end))
    before = draw.choice([None, id_at(DAY + draw.randrange(1, 45)), UUID(int=id_at(DAY + draw.randrange(45)).int + 77)])
    start = draw.choice([None, id_at(DAY)])
    found = list(id_ranges(segments, start, before))
    if found:
        assert (found[0].before, found[-1].first) == (before, start)
    assert all(upper.first == lower.before for upper, lower in pairwise(found))
    for one in found:
        inside = [own for own in segments if one.before and own.first < one.before <= own.end]
        assert (one.segment in inside) if inside else one.segment is None
        if one.segment is not None:
            assert one.first == one.segment.first


def test_number_of_segments_and_of_merges_grows_with_the_logarithm() -> None:
    """Of 1,000 segments of the smallest size at most 15 remain, and an event is indexed at most five times."""
    segments: list[WordSegment] = []
    indexed = 0
    for place in range(1000):
        assert indexed_until(segments, id_at(DAY)) == id_at(DAY + place)
        new = merge(segments, segment(place, place + 1))
        indexed += new.events
        segments.append(new)
        useless = redundant_segments(segments)
        segments = [one for one in segments if one not in useless]
        assert len(segments) <= (MERGE_SIZE - 1) * 5
        assert sum(one.events for one in segments) == (place + 1) * MIN_EVENTS
    assert indexed <= 5 * 1000 * MIN_EVENTS
    assert len(merge(segments, segment(1000, 1001, 100_000_000)).name) <= 63
    assert merge(segments, segment(1000, 1001, 100_000_000)) == segment(0, 1001, 110_000_000)


def test_merge_that_was_interrupted_leaves_only_surplus() -> None:
    """Segments within another segment are redundant, also those with the same ids. Overlapping ones are not."""
    whole, parts = segment(0, 4, 4), [segment(0, 1), segment(1, 3), segment(3, 4), segment(0, 4, 5)]
    assert redundant_segments([whole, *parts]) == [
        parts[3],
        parts[0],
        parts[1],
        parts[2],
    ] or whole in redundant_segments([whole, *parts])
    assert len(redundant_segments([whole, *parts])) == len(parts)
    assert redundant_segments([segment(0, 3), segment(2, 4)]) == []
    assert redundant_segments([whole, WordSegment("events_20261130", whole.first, whole.end, 1)]) == []


def test_gap_is_indexed_with_what_follows() -> None:
    """The next segment begins at the first id that is in no segment. Segments after the gap are redundant then."""
    segments = [segment(0, 1), segment(2, 3)]
    assert indexed_until(segments, id_at(DAY)) == id_at(DAY + 1)
    new = merge(segments, segment(1, 5))
    assert new == segment(1, 5)
    assert redundant_segments([*segments, new]) == [segments[1]]


def test_creating_segments_takes_a_tenth_of_the_time() -> None:
    """Checks are a minute apart, longer after a slow check, but at most ten minutes."""
    assert [seconds_until_check(work) for work in (0.1, 6, 20, 3600)] == [60, 60, 200, 600]
