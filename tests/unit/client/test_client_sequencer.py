"""The order of received events."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.client.events.history import History
from sandherd.client.events.sequencer import Event, MissingRange, Sequencer, has_single_entity
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.agent import AgentWaiting
from sandherd.contracts.requests import EventList, ListEvents, StoredEvent

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
def test_each_source_is_shown_in_order_and_once(received: list[tuple[str, int]]) -> None:
    """In any order, with repetitions, each source is shown as 1, 2, 3 … without a gap."""
    order = Sequencer()
    shown = [event for source, number in received for event in order.offer(an_event(number, source))]
    for source in {source for source, _ in received}:
        numbers = [event.sequence for event in shown if event.source == source]
        assert numbers == list(range(1, len(numbers) + 1))


@given(st.permutations(range(1, 13)))
def test_any_order_loses_nothing(numbers: list[int]) -> None:
    """When all have come, all were shown and no gap is left."""
    order = Sequencer()
    shown = [event.sequence for number in numbers for event in order.offer(an_event(number))]
    assert shown == list(range(1, 13))
    assert order.gaps() == []


def test_gap_is_reported_with_both_ends() -> None:
    """The missing range is between the last shown and the first held event."""
    order = Sequencer()
    for number in (1, 2, 6, 7, 9):
        order.offer(an_event(number))
    assert order.gaps() == [MissingRange(WORKER, 3, 5)]


def test_skipping_a_gap_yields_the_held_events() -> None:
    """Skipping one gap yields the events behind it, and the next gap is reported."""
    order = Sequencer()
    for number in (1, 4, 5, 8):
        order.offer(an_event(number))
    assert [event.sequence for event in order.skip(MissingRange(WORKER, 2, 3))] == [4, 5]
    assert order.gaps() == [MissingRange(WORKER, 6, 7)]
    assert order.offer(an_event(2)) == []


def test_source_about_many_sandboxes_has_no_gaps() -> None:
    """The monitor's numbers run over the whole herd, so a follower of one sandbox gets only some."""
    order = Sequencer()
    first, later = an_event(17, MONITOR), an_event(45, MONITOR)
    assert order.offer(first) == [first]
    assert order.offer(first) == []
    assert order.offer(later) == [later]
    assert order.gaps() == []
    assert not has_single_entity(MONITOR)


@pytest.mark.parametrize(
    ("stored_through", "complete"), [(None, True), (6, False), (7, True)], ids=["older", "incomplete", "complete"]
)
async def test_stored_event_shows_those_before_it_only_if_they_are_stored(
    stored_through: int | None, complete: bool
) -> None:
    """An event may be stored before an earlier one: the service states through which position none is missing."""
    final = an_event(3)

    async def send(request: ListEvents) -> EventList:
        assert (request.source, request.after_sequence) == (WORKER, 2)
        stored = StoredEvent(stream_sequence=7, envelope=final.model_dump(mode="json", exclude_none=True))
        return EventList(events=[stored], stored_through=stored_through)

    assert await History(send, lambda: 0.0).has(final) is complete
