"""What an agent says on its events pipe: good lines become events, bad ones a complaint, and nothing breaks."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd_worker.harnesses.event_lines import LONGEST_LINE, SPEAKABLE, EventLines, read_line


async def read(listener: Any, data: bytes) -> list[Any]:
    reader = asyncio.StreamReader(LONGEST_LINE)
    reading = asyncio.ensure_future(EventLines(listener.say, lambda: 3).read(reader))
    for start in range(0, len(data), 100_000):
        reader.feed_data(data[start : start + 100_000])
        await asyncio.sleep(0)
    reader.feed_eof()
    await reading
    return list(listener.events)


def line(kind: str, **data: Any) -> bytes:
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


async def test_a_good_line_is_an_event_of_the_present_turn(listener: Any) -> None:
    """Its fields are kept, and the turn is filled in where it does not say one."""
    events = await read(listener, line("agent.tool_use", tool="sh", tool_use_id="1", input={"a": 1}))
    assert (events[0].type, events[0].input, events[0].turn) == ("agent.tool_use", {"a": 1}, 3)


@pytest.mark.parametrize("kind", sorted(set(EVENTS) - SPEAKABLE))
def test_what_is_not_an_agents_to_say_is_refused(kind: str) -> None:
    """An agent can't end its own attempt, beat for its worker, or speak as a service."""
    with pytest.raises(ContractError) as refusal:
        read_line(line(kind), 1)
    assert refusal.value.problem.field == "type"


def test_the_ends_and_the_workers_own_words_are_reserved() -> None:
    """The list itself: an end that an agent may say would be believed by the spawner."""
    own = {"started", "heartbeat", "completed", "failed", "shutdown", "message_injected", "file_edited"}
    assert not SPEAKABLE & {f"agent.{action}" for action in own}
    assert {"agent.tool_use", "agent.usage", "agent.message", "agent.thinking"} <= SPEAKABLE


async def test_a_bad_line_names_its_field_and_harms_nothing_beside_it(listener: Any) -> None:
    """The lines before and after are said; the complaint says which field, and never the value."""
    data = line("agent.message", content="a", content_length=1)
    data += line("agent.message", content="sesame", content_length=-1)
    data += b"{nonsense\n[1]\n\n" + line("agent.message", content="b", content_length=1)
    events = await read(listener, data)
    assert [event.type for event in events] == ["agent.message", *["agent.error"] * 3, "agent.message"]
    assert "content_length" in events[1].error
    assert "sesame" not in events[1].error


async def test_a_line_that_never_ends_is_passed_over(listener: Any) -> None:
    """It is complained about once, the memory stays bounded, and the next line is read."""
    data = b"x" * (3 * LONGEST_LINE) + b"\n" + line("agent.message", content="b", content_length=1)
    events = await read(listener, data)
    assert [event.type for event in events] == ["agent.error", "agent.message"]


async def test_the_last_line_needs_no_end(listener: Any) -> None:
    """An agent that ends in the middle of a line has still said it, if it is whole."""
    events = await read(listener, line("agent.message", content="b", content_length=1).rstrip(b"\n"))
    assert [event.type for event in events] == ["agent.message"]


@given(st.binary(max_size=400))
def test_any_bytes_are_an_event_or_a_typed_error(data: bytes) -> None:
    """Nothing but `ContractError` ever comes of a line."""
    with suppress(ContractError):
        assert read_line(data, 1).type in SPEAKABLE


@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(sorted(SPEAKABLE))},
        optional={
            "data": st.dictionaries(
                st.sampled_from(["turn", "tool", "content", "content_length", "input", "tool_use_id", "error"]),
                st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.dictionaries(st.text(), st.text()),
            )
        },
    )
)
def test_any_shape_of_a_known_type_is_an_event_or_a_typed_error(document: dict[str, Any]) -> None:
    """Wrong types, missing and extra fields."""
    with suppress(ContractError):
        assert read_line(json.dumps(document).encode(), 1).type == document["type"]


def test_a_line_nested_too_deeply_is_a_typed_error() -> None:
    """It would exhaust the stack of a careless reader."""
    with pytest.raises(ContractError):
        read_line(b'{"type":"agent.tool_use","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 1)
