"""Lines on the events pipe: valid ones become events, invalid ones an error event."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.events import EVENTS
from sandherd_worker.harnesses.event_lines import (
    MAX_BYTES_IN_FLIGHT,
    MAX_LINE_BYTES,
    READ_BYTES,
    AgentProcess,
    EventLines,
    may_emit,
)
from sandherd_worker.harnesses.line_splitter import LineSplitter, OverlongLine
from tests.events_pipe import published

EXAMPLES: Final = Path(__file__).parents[3] / "libs" / "sandherd" / "contracts" / "golden" / "v1" / "events"
PROCESSES: Final[tuple[AgentProcess, ...]] = ("agent", "driver")
AN_AGENTS: Final = {
    f"agent.{action}"
    for action in (
        *("message", "thinking", "assistant_message", "user_message", "system_message", "usage", "error"),
        *("tool_use", "tool_completed", "tool_result", "user_tool_result"),
        *("subagent_invoked", "subagent_completed", "skill_invoked", "skill_completed"),
        *("model_call_started", "model_call_completed", "context_compacted"),
    )
}
A_DRIVERS: Final = {"agent.turn_started", "agent.turn_completed", "agent.stream_error"}
DECIDED_BY: Final = (
    *("started", "heartbeat", "completed", "failed", "shutdown", "waiting", "interrupted"),
    *("message_sent", "message_injected", "file_edited", "work_saved", "transcript_saved"),
    *("approval_requested", "approval_withdrawn"),
    *("iteration_started", "iteration_completed", "iteration_failed", "iteration_validated"),
    *("exec_started", "exec_completed", "file_uploaded", "file_downloaded"),
    *("server_started", "server_ready", "server_failed", "server_stopped"),
)
"""What the spawner, the relay, the monitor, the ingest, or a user decides by, and no one else may publish."""


async def read(listener: Any, data: bytes, handle: Any = None) -> list[Any]:
    reader = asyncio.StreamReader(READ_BYTES)
    reading = asyncio.ensure_future(EventLines(listener.publish, lambda: 3, handle).read(reader))
    for start in range(0, len(data), 100_000):
        reader.feed_data(data[start : start + 100_000])
        await asyncio.sleep(0)
    reader.feed_eof()
    await reading
    return list(listener.events)


def events_of(data: bytes, process: AgentProcess = "agent") -> list[Any]:
    """What is published for these bytes, outside of an event loop."""
    return asyncio.run(published(data, process))


def line(kind: str, /, **data: Any) -> bytes:
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


async def test_valid_line_is_an_event_of_the_current_turn(listener: Any) -> None:
    """The event's fields are preserved, and the turn is filled in if it is absent."""
    events = await read(listener, line("agent.tool_use", tool="sh", tool_use_id="1", input={"a": 1}))
    assert (events[0].type, events[0].input, events[0].turn) == ("agent.tool_use", {"a": 1}, 3)


def example(kind: str) -> bytes:
    """A whole event of this kind, so that nothing but its name can be wrong with it."""
    return line(kind, **json.loads((EXAMPLES / f"{kind}.json").read_text())["data"])


@pytest.mark.parametrize("kind", sorted(path.stem for path in EXAMPLES.iterdir()))
def test_only_permitted_events_of_a_process_are_accepted(kind: str) -> None:
    """An agent can't end its attempt, send heartbeats or messages for its worker, ask in its name, or act as a service.

    Nor can a driver, except for the begin and end of turns and errors of its agent.
    """
    for process, may in zip(PROCESSES, (kind in AN_AGENTS, kind in AN_AGENTS | A_DRIVERS), strict=True):
        (event,) = events_of(example(kind), process)
        if may:
            assert event.type == kind
        else:
            assert (event.type, "(field type)" in event.error) == ("agent.error", True)


def test_permitted_events_are_listed() -> None:
    """The classes permit exactly the events that this test names."""
    allowed = {process: {name for name in EVENTS if may_emit(name, process)} for process in PROCESSES}
    assert allowed == {"agent": AN_AGENTS, "driver": AN_AGENTS | A_DRIVERS}
    assert not may_emit("agent.unknown", "driver")


@pytest.mark.parametrize("from_driver", [False, True], ids=["agent", "driver"])
async def test_forged_decision_event_is_refused(listener: Any, from_driver: bool) -> None:
    """An agent or driver that writes a worker's event to the pipe gets an error event."""

    async def handle(_type: str, _data: dict[str, Any]) -> None:
        raise AssertionError("no driver's line")

    lines = b"".join(example(f"agent.{action}") for action in DECIDED_BY)
    events = await read(listener, lines, handle if from_driver else None)
    assert [event.type for event in events] == ["agent.error"] * len(DECIDED_BY)


def test_call_marked_as_program_is_refused() -> None:
    """The monitor ignores the duration of such a call: an agent could hide behind it."""
    forged = line("agent.tool_use", tool="sh", tool_use_id="1", event_subtype="program")
    for process in PROCESSES:
        (event,) = events_of(forged, process)
        assert (event.type, "(field event_subtype)" in event.error) == ("agent.error", True)


async def test_pending_large_lines_are_bounded(eventually: Any) -> None:
    """However fast an agent writes, the bytes that wait for the disk are bounded; small lines wait together."""
    begun: list[Any] = []
    gate = asyncio.Event()

    async def publish(event: Any) -> None:
        begun.append(event)
        await gate.wait()

    async def under_way(content: str, count: int) -> int:
        begun.clear()
        gate.clear()
        reader = asyncio.StreamReader(READ_BYTES)
        reader.feed_data(line("agent.message", content=content, content_length=1) * count)
        reader.feed_eof()
        reading = asyncio.ensure_future(EventLines(publish, lambda: 1).read(reader))
        await eventually(lambda: begun, "nothing is said")
        for _ in range(100):
            await asyncio.sleep(0)
        waited = len(begun)
        gate.set()
        await reading
        assert len(begun) == count
        return waited

    assert await under_way("x" * (MAX_LINE_BYTES - 1000), 20) * MAX_LINE_BYTES <= MAX_BYTES_IN_FLIGHT
    assert await under_way("x" * 100, 200) == 64


async def test_invalid_line_names_its_field_and_affects_no_other(listener: Any) -> None:
    """The lines before and after are published; the error names the field, and never the value."""
    data = line("agent.message", content="a", content_length=1)
    data += line("agent.message", content="sesame", content_length=-1)
    data += b"{nonsense\n[1]\n\n" + line("agent.message", content="b", content_length=1)
    events = await read(listener, data)
    assert [event.type for event in events] == ["agent.message", *["agent.error"] * 3, "agent.message"]
    assert "content_length" in events[1].error
    assert "sesame" not in events[1].error


async def test_endless_line_is_skipped(listener: Any) -> None:
    """One error is published, the memory stays bounded, and the next line is read."""
    data = b"x" * (3 * MAX_LINE_BYTES) + b"\n" + line("agent.message", content="b", content_length=1)
    events = await read(listener, data)
    assert [event.type for event in events] == ["agent.error", "agent.message"]
    assert f"a line of {3 * MAX_LINE_BYTES + 1} bytes" in events[0].error


@given(st.lists(st.sampled_from([b"a", b"bc" * 9, b"\n", b"\n\n", b"d" * 40, b"e\n", b"\nfg", b""]), max_size=30))
def test_lines_are_the_same_however_data_arrives(parts: list[bytes]) -> None:
    """Every line is whole up to the limit; of a longer one the size is known, with its line feed."""
    splitter = LineSplitter(20)
    found = [*(line for part in parts for line in splitter.feed(part)), splitter.rest()]
    *lines, last = b"".join(parts).split(b"\n")
    expected = [line if len(line) <= 20 else OverlongLine(len(line) + 1) for line in lines]
    assert found == [*expected, last if len(last) <= 20 else OverlongLine(len(last))]


async def test_last_line_needs_no_line_end(listener: Any) -> None:
    """A complete event at the end of the stream is read without its line end."""
    events = await read(listener, line("agent.message", content="b", content_length=1).rstrip(b"\n"))
    assert [event.type for event in events] == ["agent.message"]


@given(st.binary(max_size=400))
def test_any_bytes_are_an_event_or_a_typed_error(data: bytes) -> None:
    """Each line that is not blank is one event, if only of the error; nothing is raised."""
    events = events_of(data)
    assert len(events) == sum(bool(part.strip()) for part in data.split(b"\n"))
    assert {event.type for event in events} <= AN_AGENTS


@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(sorted(AN_AGENTS))},
        optional={
            "data": st.dictionaries(
                st.sampled_from(["turn", "tool", "content", "content_length", "input", "tool_use_id", "error"]),
                st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.dictionaries(st.text(), st.text()),
            )
        },
    )
)
def test_any_shape_of_a_known_type_is_an_event_or_a_typed_error(document: dict[str, Any]) -> None:
    """Wrong types, missing and extra fields are typed errors."""
    (event,) = events_of(json.dumps(document).encode())
    assert event.type in {document["type"], "agent.error"}


def test_deeply_nested_line_is_a_typed_error() -> None:
    """The line would exhaust the stack of a careless reader."""
    (event,) = events_of(b'{"type":"agent.tool_use","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert event.type == "agent.error"
