"""What an agent says on its events pipe: good lines become events, bad ones a complaint, and nothing breaks."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.heard import HEARD_FROM, Teller
from sandherd_worker.harnesses.event_lines import IN_FLIGHT, LONGEST_LINE, EventLines, read_line

EXAMPLES: Final = Path(__file__).parents[3] / "libs" / "sandherd" / "contracts" / "golden" / "v1" / "events"
TELLERS: Final[tuple[Teller, ...]] = ("agent", "driver")
AN_AGENTS: Final = {
    f"agent.{action}"
    for action in (
        *("message", "thinking", "assistant_message", "user_message", "system_message", "usage", "error"),
        *("tool_use", "tool_completed", "tool_result", "user_tool_result"),
        *("subagent_invoked", "subagent_completed", "skill_invoked", "skill_completed"),
        *("model_call_started", "model_call_completed"),
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
"""What the spawner, the relay, the monitor, the ingest, or a person decides by, and nobody else may say."""


async def read(listener: Any, data: bytes, heed: Any = None) -> list[Any]:
    reader = asyncio.StreamReader(LONGEST_LINE)
    reading = asyncio.ensure_future(EventLines(listener.say, lambda: 3, heed).read(reader))
    for start in range(0, len(data), 100_000):
        reader.feed_data(data[start : start + 100_000])
        await asyncio.sleep(0)
    reader.feed_eof()
    await reading
    return list(listener.events)


def line(kind: str, /, **data: Any) -> bytes:
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


async def test_a_good_line_is_an_event_of_the_present_turn(listener: Any) -> None:
    """Its fields are kept, and the turn is filled in where it does not say one."""
    events = await read(listener, line("agent.tool_use", tool="sh", tool_use_id="1", input={"a": 1}))
    assert (events[0].type, events[0].input, events[0].turn) == ("agent.tool_use", {"a": 1}, 3)


def example(kind: str) -> bytes:
    """A whole event of this kind, so that nothing but its name can be wrong with it."""
    return line(kind, **json.loads((EXAMPLES / f"{kind}.json").read_text())["data"])


@pytest.mark.parametrize("kind", sorted(path.stem for path in EXAMPLES.iterdir()))
def test_only_what_is_an_agents_to_say_is_heard_from_it(kind: str) -> None:
    """An agent can't end its attempt, beat or send for its worker, ask in its name, or speak as a service.

    No more can a driver: beside the same, its word is taken for where turns begin and end, and that its agent broke.
    """
    for teller, may in zip(TELLERS, (kind in AN_AGENTS, kind in AN_AGENTS | A_DRIVERS), strict=True):
        try:
            assert read_line(example(kind), 1, teller).type == kind
        except ContractError as refusal:
            assert refusal.problem.field == "type"  # noqa: PT017  # whether it is raised is the question
            assert not may
        else:
            assert may


def test_what_is_heard_from_agents_are_events() -> None:
    """The table names nothing else, and all that this test names."""
    assert set(HEARD_FROM) == AN_AGENTS | A_DRIVERS
    assert set(EVENTS) > set(HEARD_FROM)


@pytest.mark.parametrize("heeded", [False, True], ids=["agent", "driver"])
async def test_a_forged_event_is_complained_about_and_never_said(listener: Any, heeded: bool) -> None:
    """On the pipe itself, from an agent's program and from a driver: nobody decides by a word that it made up."""

    async def heed(_type: str, _data: dict[str, Any]) -> None:
        raise AssertionError("no driver's line")

    lines = b"".join(example(f"agent.{action}") for action in DECIDED_BY)
    events = await read(listener, lines, heed if heeded else None)
    assert [event.type for event in events] == ["agent.error"] * len(DECIDED_BY)


def test_a_call_that_may_take_for_ever_is_the_workers_to_name() -> None:
    """The monitor lets such a call be: an agent could hide behind it."""
    forged = line("agent.tool_use", tool="sh", tool_use_id="1", event_subtype="program")
    for teller in TELLERS:
        with pytest.raises(ContractError) as refusal:
            read_line(forged, 1, teller)
        assert refusal.value.problem.field == "event_subtype"


async def test_few_large_lines_are_under_way_at_a_time(eventually: Any) -> None:
    """However fast an agent writes, what waits for the disk is bounded in bytes; small lines wait together."""
    begun: list[Any] = []
    gate = asyncio.Event()

    async def say(event: Any) -> None:
        begun.append(event)
        await gate.wait()

    async def under_way(content: str, count: int) -> int:
        begun.clear()
        gate.clear()
        reader = asyncio.StreamReader(LONGEST_LINE)
        reader.feed_data(line("agent.message", content=content, content_length=1) * count)
        reader.feed_eof()
        reading = asyncio.ensure_future(EventLines(say, lambda: 1).read(reader))
        await eventually(lambda: begun, "nothing is said")
        for _ in range(100):
            await asyncio.sleep(0)
        waited = len(begun)
        gate.set()
        await reading
        assert len(begun) == count
        return waited

    assert await under_way("x" * (LONGEST_LINE - 1000), 20) * LONGEST_LINE <= IN_FLIGHT
    assert await under_way("x" * 100, 200) == 64


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
        assert read_line(data, 1).type in AN_AGENTS


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
    """Wrong types, missing and extra fields."""
    with suppress(ContractError):
        assert read_line(json.dumps(document).encode(), 1).type == document["type"]


def test_a_line_nested_too_deeply_is_a_typed_error() -> None:
    """It would exhaust the stack of a careless reader."""
    with pytest.raises(ContractError):
        read_line(b'{"type":"agent.tool_use","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 1)
