"""New events that wait in the monitor's memory. Missing until then: their number was limited, and not their size."""

from types import SimpleNamespace
from typing import Any

from monitor.event_reader import EventReader
from sandherd.contracts.headers import SEQUENCE_HEADER, STORED_AT, STORED_SUBJECT

MIB = 1024 * 1024
SIZE = 250_000


def republished(number: int) -> Any:
    headers = {
        SEQUENCE_HEADER: str(number),
        STORED_SUBJECT: "sandherd.v1.event.p1.sbx-1.agent.message",
        STORED_AT: "2026-11-20T10:00:00Z",
    }
    return SimpleNamespace(headers=headers, data=b"x" * SIZE)


async def test_large_events_use_a_limited_memory_and_none_is_skipped() -> None:
    """Above the limit those that wait are dropped, to be read from the stream; none of those that remain is popped."""
    reader = EventReader(None)  # type: ignore[arg-type]  # nothing is read from the broker here
    reader._next_sequence = 1
    for number in range(1, 1001):
        await reader._on_event(republished(number))
        assert sum(len(msg.data) for _, msg in reader._waiting) <= 64 * MIB
    assert reader._pop_consecutive() is None


async def test_read_events_count_no_more() -> None:
    """Whatever number of large events was read, those that arrive next are held."""
    reader = EventReader(None)  # type: ignore[arg-type]  # nothing is read from the broker here
    reader._next_sequence = 1
    for number in range(1, 1001):
        await reader._on_event(republished(number))
        batch = reader._pop_consecutive()
        assert batch is not None
        assert [event.stream_sequence for event in batch.events] == [batch.position] == [number]
