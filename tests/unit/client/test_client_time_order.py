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
    order.add("spawned", source="sandbox", time=at(122), now=0.0)
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


def late_by(order: TimeOrder[str], name: str, *, created: float, received: float) -> None:
    """An item of a source of its own, by one clock in seconds."""
    order.add(name, source=name, time=NOON + timedelta(seconds=created), now=received)


def test_sources_with_larger_delays_are_waited_for() -> None:
    """Under load one source arrives a second later than another, which the next items of the other wait for."""
    order: TimeOrder[str] = TimeOrder(0.3)
    late_by(order, "quick", created=0.0, received=0.0)
    late_by(order, "slow", created=0.0, received=1.0)
    assert (order.due(1.5), order.due(2.5)) == (["quick"], ["slow"])
    late_by(order, "quick 2", created=3.0, received=3.0)
    assert (order.due(3.9), round(order.due_in(3.9) or 0, 3)) == ([], 0.6)
    late_by(order, "slow 2", created=2.9, received=3.9)
    assert order.due(4.5) == ["slow 2", "quick 2"]


def test_hold_is_limited_and_short_again_later() -> None:
    """A delay counts for ten seconds; one above the limit is that of a stored item, which says little about others."""
    order: TimeOrder[str] = TimeOrder(0.3, limit=3.0)
    late_by(order, "quick", created=0.0, received=0.0)
    late_by(order, "slow", created=-2.9, received=0.0)
    assert (order.due(2.9), order.due(3.0)) == ([], ["slow", "quick"])
    late_by(order, "later", created=12.0, received=12.0)
    late_by(order, "stored", created=-600.0, received=12.0)
    assert order.due(12.3) == ["stored", "later"]


def test_missing_items_are_waited_for_up_to_the_limit() -> None:
    """While the follower requests missing events, the others are held."""
    order: TimeOrder[str] = TimeOrder(0.3, limit=3.0)
    order.add("running", source="task", time=at(9), now=0.0)
    order.incomplete = True
    assert (order.due(2.9), round(order.due_in(2.9) or 0, 3)) == ([], 0.1)
    assert order.due(3.0) == ["running"]


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5)), max_size=60))
def test_items_wait_for_the_limit_at_longest(items: list[tuple[float, float]]) -> None:
    """Whatever the delays are, each item is returned once, and none later than the limit after its receipt."""
    order: TimeOrder[int] = TimeOrder(0.3, limit=3.0)
    shown: list[int] = []
    arrivals = sorted((created + delay, created) for created, delay in items)
    for number, (received, created) in enumerate(arrivals):
        order.add(number, source=str(number), time=NOON + timedelta(seconds=created), now=received)
        shown += order.due(received)
        assert {old for old in range(number) if arrivals[old][0] + 3.0 <= received} <= set(shown)
    assert sorted(shown + order.rest()) == list(range(len(items)))
