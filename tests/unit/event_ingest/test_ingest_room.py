"""How room is given: never what is not handled, no more than needed, and never from those who hold little."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from event_ingest.room import GOAL, LEAST_PIECES, MARK, is_near, next_cut, to_keep
from sandherd.bus.fullness import Fill, remark

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=200)
HOLDINGS = st.dictionaries(
    st.tuples(st.sampled_from(["p1", "p2"]), st.integers(1, 30).map(lambda number: f"sbx-{number}")),
    st.integers(1, 20_000),
    min_size=1,
)


def a_fill(held: int, limit: int, *, messages: int = 100, first: int = 1) -> Fill:
    return Fill("EVENTS", held, limit, messages, first, first + messages - 1, refuses=True)


def cleared(sizes: list[int], limit: int, handled: int) -> Fill:
    """A stream of messages of these sizes, after room was given in it."""
    fill = a_fill(sum(sizes), limit, messages=len(sizes))
    while (cut := next_cut(fill, handled)) is not None:
        assert cut > fill.first
        held = sum(sizes[cut - 1 :])
        fill = replace(fill, held=held, first=cut, messages=len(sizes) - cut + 1)
    return fill


@given(SIZES, st.integers(0, 250), st.floats(0.5, 3))
def test_nothing_goes_that_is_not_handled_and_no_less_than_needed(sizes: list[int], handled: int, over: float) -> None:
    """Room is given until the goal is reached or all that is handled is gone; what is not handled always stays."""
    limit = max(1, int(sum(sizes) / over))
    fill = cleared(sizes, limit, min(handled, len(sizes)))
    assert fill.first <= handled + 1 or handled >= len(sizes)
    assert fill.ratio <= GOAL or fill.first == min(handled, len(sizes)) + 1 or not fill.messages


@given(SIZES, st.floats(0.5, 3))
def test_no_more_goes_than_one_step_too_much(sizes: list[int], over: float) -> None:
    """Of what may all go, no more goes than a sixteenth of the messages beyond the goal."""
    limit = max(1, int(sum(sizes) / over))
    fill = cleared(sizes, limit, len(sizes))
    step_before = max(1, fill.first - max(1, len(sizes) // 16))
    if fill.first > 1:
        assert sum(sizes[step_before - 1 :]) / limit > GOAL


def test_room_is_given_from_the_mark_on() -> None:
    """Below the mark a stream is left alone; at the mark it is time, and a stream without a limit is never full."""
    assert not is_near(a_fill(int(100 * MARK) - 1, 100))
    assert is_near(a_fill(int(100 * MARK), 100))
    assert not is_near(a_fill(10**9, 0))


@given(HOLDINGS)
def test_who_holds_little_gives_up_nothing(pieces: dict[tuple[str, str], int]) -> None:
    """All who give up keep the same number, no fewer than anybody else keeps, and no fewer than the least."""
    total = sum(pieces.values())
    kept = to_keep(pieces, a_fill(total * 1000, total * 1000, messages=total))
    levels = set(kept.values())
    assert len(levels) <= 1
    for level in levels:
        assert level >= LEAST_PIECES
        assert all((pieces[key] > level) is (key in kept) for key in pieces)


@given(HOLDINGS)
def test_the_goal_is_reached_unless_it_would_take_from_those_who_hold_little(
    pieces: dict[tuple[str, str], int],
) -> None:
    """What is left is at the goal, or everybody holds the least or less."""
    total = sum(pieces.values())
    kept = to_keep(pieces, a_fill(total * 1000, total * 1000, messages=total))
    left = sum((pieces | kept).values())
    assert left <= total * GOAL or max((pieces | kept).values()) <= LEAST_PIECES


def test_people_are_told_of_streams_that_will_refuse_and_of_no_others() -> None:
    """A nearly full stream is named if it refuses when it is full; one that lets the oldest go is full every day."""
    near = a_fill(90, 100)
    assert remark([near, a_fill(10, 100)]) == (
        "EVENTS is 90% full; a full one takes no more, and who speaks into it waits"
    )
    assert remark([replace(near, stream="OUTPUT", refuses=False)]) is None
