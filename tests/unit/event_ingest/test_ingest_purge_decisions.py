"""Purges remove no unhandled messages, no more than needed, and nothing of owners with few chunks."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from event_ingest.stream_purge_policy import (
    GOAL,
    MIN_CHUNKS,
    PURGE_THRESHOLD,
    estimate_bytes,
    is_nearly_full,
    limit_chunks,
    next_purge_sequence,
)
from sandherd.service.stream_usage import StreamFill, fill_warning

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=200)
HOLDINGS = st.dictionaries(
    st.tuples(st.sampled_from(["p1", "p2"]), st.integers(1, 30).map(lambda number: f"sbx-{number}")),
    st.integers(1, 20_000),
    min_size=1,
)


def a_fill(held: int, limit: int, *, messages: int = 100, first: int = 1) -> StreamFill:
    return StreamFill("EVENTS", held, limit, messages, first, first + messages - 1, refuses=True)


def cleared(sizes: list[int], limit: int, handled: int) -> StreamFill:
    """A stream with messages of these sizes, after a purge."""
    fill = a_fill(sum(sizes), limit, messages=len(sizes))
    while (cut := next_purge_sequence(fill, handled)) is not None:
        assert cut > fill.first
        held = sum(sizes[cut - 1 :])
        fill = replace(fill, held=held, first=cut, messages=len(sizes) - cut + 1)
    return fill


@given(SIZES, st.integers(0, 250), st.floats(0.5, 3))
def test_clearing_frees_handled_messages_up_to_the_goal(sizes: list[int], handled: int, over: float) -> None:
    """Messages are removed until the goal is reached or all handled ones are; unhandled ones stay."""
    limit = max(1, int(sum(sizes) / over))
    fill = cleared(sizes, limit, min(handled, len(sizes)))
    assert fill.first <= handled + 1 or handled >= len(sizes)
    assert fill.ratio <= GOAL or fill.first == min(handled, len(sizes)) + 1 or not fill.messages


@given(SIZES, st.floats(0.5, 3))
def test_clearing_exceeds_the_goal_by_one_step_at_most(sizes: list[int], over: float) -> None:
    """No more than a sixteenth of the messages is removed beyond the goal."""
    limit = max(1, int(sum(sizes) / over))
    fill = cleared(sizes, limit, len(sizes))
    step_before = max(1, fill.first - max(1, len(sizes) // 16))
    if fill.first > 1:
        assert sum(sizes[step_before - 1 :]) / limit > GOAL


def test_stream_is_cleared_from_the_threshold_on() -> None:
    """Below the threshold nothing is purged. A stream without a limit is never full."""
    assert not is_nearly_full(a_fill(int(100 * PURGE_THRESHOLD) - 1, 100))
    assert is_nearly_full(a_fill(int(100 * PURGE_THRESHOLD), 100))
    assert not is_nearly_full(a_fill(10**9, 0))


@given(HOLDINGS)
def test_owners_of_few_chunks_lose_none(chunks: dict[tuple[str, str], int]) -> None:
    """Owners that lose chunks keep the same number: at least the minimum, and no less than any other owner has."""
    total = sum(chunks.values())
    stored = limit_chunks(chunks, a_fill(total * 1000, total * 1000, messages=total))
    levels = set(stored.values())
    assert len(levels) <= 1
    for level in levels:
        assert level >= MIN_CHUNKS
        assert all((chunks[key] > level) is (key in stored) for key in chunks)


@given(HOLDINGS)
def test_goal_is_reached_unless_only_minimums_are_left(
    chunks: dict[tuple[str, str], int],
) -> None:
    """After the purge the stream is at its goal, or each owner has at most the minimum."""
    total = sum(chunks.values())
    stored = limit_chunks(chunks, a_fill(total * 1000, total * 1000, messages=total))
    left = sum((chunks | stored).values())
    assert left <= total * GOAL or max((chunks | stored).values()) <= MIN_CHUNKS


def test_only_streams_that_refuse_are_reported_as_full() -> None:
    """A nearly full stream is reported if it refuses messages when full, but not if it discards the oldest."""
    near = a_fill(90, 100)
    assert fill_warning([near, a_fill(10, 100)]) == (
        "EVENTS is 90% full; a full stream accepts no messages, and its publishers wait"
    )
    assert fill_warning([replace(near, stream="OUTPUT", refuses=False)]) is None


def test_purged_bytes_are_those_of_the_purged_messages() -> None:
    """Messages that are published during a purge do not reduce the freed bytes. An empty stream frees nothing."""
    assert estimate_bytes(StreamFill("EVENTS", 2000, 2000, 20, 1, 20, refuses=True), 5) == 500
    assert estimate_bytes(StreamFill("EVENTS", 0, 2000, 0, 1, 0, refuses=True), 0) == 0
