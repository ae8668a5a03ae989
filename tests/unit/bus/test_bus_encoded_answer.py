"""Replies with lists that are encoded already."""

from typing import Any

import pytest

from sandherd.contracts.requests import EventList, HeartbeatSummary, Reply, Trajectory
from sandherd.service.encoded_answer import EncodedAnswer, encode_reply
from sandherd.service.request_scheduler import rows_of
from tests.encoded_answers import read_answer

EVENTS = [b'{"stream_sequence":%d,"envelope":{"id":"%d"}}' % (number, number) for number in (1, 2)]
SUMMARY = HeartbeatSummary(count=0, first_heartbeat=None, last_heartbeat=None)


@pytest.mark.parametrize(
    "answer",
    [
        EventList(events=[], next_cursor='"events":[', stored_through=7),
        Trajectory(
            sandbox_id="sbx-1",
            events=[],
            heartbeat_summary=SUMMARY,
            total_events=2,
            trajectory_events=2,
            next_cursor=None,
            prev_cursor=None,
            has_more=False,
        ),
    ],
)
@pytest.mark.parametrize("events", [EVENTS, []])
def test_requester_reads_the_answer_with_its_list(answer: Any, events: list[bytes]) -> None:
    """The reply is that of the complete model, even if a text of it looks like the start of the list."""
    encoded = EncodedAnswer(answer, "events", events)
    complete = type(answer).model_validate({**answer.model_dump(), "events": read_answer(encoded).events})
    assert [event.stream_sequence for event in complete.events] == [1, 2][: len(events)]
    assert encode_reply(Reply[Any](ok=encoded)) == encode_reply(Reply[Any](ok=complete))
    assert rows_of(Reply[Any](ok=encoded)) == len(events)


@pytest.mark.parametrize("field", ["rows", "next_cursor"])
def test_missing_list_is_an_error(field: str) -> None:
    """A list that the answer does not have is never omitted silently."""
    with pytest.raises(ValueError, match=f"no empty list {field}"):
        EncodedAnswer(EventList(events=[], next_cursor="x"), field, EVENTS).to_json()


def test_list_with_items_is_an_error() -> None:
    """Items of the model are never replaced silently."""
    answer = read_answer(EncodedAnswer(EventList(events=[]), "events", EVENTS))
    with pytest.raises(ValueError, match="no empty list events"):
        EncodedAnswer(answer, "events", EVENTS).to_json()
