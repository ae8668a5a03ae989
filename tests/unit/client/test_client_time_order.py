"""The order in which live output is shown."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sandherd.client.events.time_order import TimeOrder

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def at(milliseconds: int) -> datetime:
    return NOON + timedelta(milliseconds=milliseconds)


def test_an_earlier_item_that_arrives_later_is_shown_first() -> None:
    """Within the hold, items are sorted by their times, whichever source they are from."""
    order: TimeOrder[str] = TimeOrder(0.3)
    order.add("spawned", source="sandbox", time=at(222), now=0.0)
    order.add("assigned", source="task", time=at(116), now=0.1)
    assert (order.due(0.2), order.due_in(0.2)) == ([], 0.3 - 0.2)
    assert order.due(0.3) == ["assigned", "spawned"]
    assert (order.due(9.0), order.rest(), order.due_in(9.0)) == ([], [], None)


def test_item_with_a_later_time_is_held_until_its_turn() -> None:
    """A due item releases only earlier ones."""
    order: TimeOrder[str] = TimeOrder(0.3)
    order.add("first", source="a", time=at(1), now=0.0)
    order.add("last", source="b", time=at(2), now=0.2)
    assert order.due(0.3) == ["first"]
    assert order.due(0.4) == []
    assert order.rest() == ["last"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=60))
def test_order_of_a_source_is_preserved(items: list[tuple[str, int]]) -> None:
    """The clock of a source may be set back, and items may be released in parts; each is returned once."""
    order: TimeOrder[tuple[str, int]] = TimeOrder(0.3)
    shown: list[tuple[str, int]] = []
    for number, (source, time) in enumerate(items):
        order.add((source, number), source=source, time=at(time), now=number / 10)
        shown += order.due(number / 10)
    shown += order.rest()
    for source in "abc":
        assert [item for item in shown if item[0] == source] == [
            (source, number) for number, item in enumerate(items) if item[0] == source
        ]


@given(st.lists(st.integers(0, 50), max_size=60))
def test_items_within_the_hold_are_sorted_by_time(times: list[int]) -> None:
    """Sources that each publish once, in any order."""
    order: TimeOrder[int] = TimeOrder(0.3)
    for number, time in enumerate(times):
        order.add(time, source=str(number), time=at(time), now=0.0)
    assert order.due(0.3) == sorted(times)
