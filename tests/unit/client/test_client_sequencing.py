"""The order of what is heard."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sandherd.client.sequencing import Event, Missing, Sequencer, speaks_of_one
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.agent import AgentWaiting

WORKER = "/sandherd/sandbox/sbx-a"
MONITOR = "/sandherd/monitor/one"


def an_event(sequence: int, source: str = WORKER) -> Event:
    return wrap(
        AgentWaiting(),
        "agent.waiting",
        source=source,
        sequence=sequence,
        project="default",
        subject="sbx-a",
        time=datetime(2026, 1, 1, tzinfo=UTC),
    )


@given(st.lists(st.tuples(st.sampled_from([WORKER, "/sandherd/spawner/sbx-a"]), st.integers(1, 30)), max_size=120))
def test_each_source_is_shown_in_order_and_once(said: list[tuple[str, int]]) -> None:
    """However events come, also twice: each source is shown as 1, 2, 3 … without a repetition or a hole."""
    order = Sequencer()
    shown = [event for source, number in said for event in order.offer(an_event(number, source))]
    for source in {source for source, _ in said}:
        numbers = [event.sequence for event in shown if event.source == source]
        assert numbers == list(range(1, len(numbers) + 1))


@given(st.permutations(range(1, 13)))
def test_nothing_is_lost_in_any_order(numbers: list[int]) -> None:
    """When all have come, all were shown and no gap is left."""
    order = Sequencer()
    shown = [event.sequence for number in numbers for event in order.offer(an_event(number))]
    assert shown == list(range(1, 13))
    assert order.gaps() == []


def test_a_gap_is_named_with_both_ends() -> None:
    """What is missing is what lies between the last shown and the first held."""
    order = Sequencer()
    for number in (1, 2, 6, 7, 9):
        order.offer(an_event(number))
    assert order.gaps() == [Missing(WORKER, 3, 5)]


def test_giving_up_shows_what_was_held_behind_the_gap() -> None:
    """Going on without a gap shows what stands behind it, and the next gap is seen."""
    order = Sequencer()
    for number in (1, 4, 5, 8):
        order.offer(an_event(number))
    assert [event.sequence for event in order.give_up(Missing(WORKER, 2, 3))] == [4, 5]
    assert order.gaps() == [Missing(WORKER, 6, 7)]
    assert order.offer(an_event(2)) == []


def test_a_source_that_speaks_of_many_has_no_gaps_here() -> None:
    """The monitor's numbers run over the whole herd, so a follower of one sandbox hears only some."""
    order = Sequencer()
    first, later = an_event(17, MONITOR), an_event(45, MONITOR)
    assert order.offer(first) == [first]
    assert order.offer(first) == []
    assert order.offer(later) == [later]
    assert order.gaps() == []
    assert not speaks_of_one(MONITOR)
