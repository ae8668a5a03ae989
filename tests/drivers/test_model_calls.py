"""Model calls derived from an agent's events."""

from typing import Any

import pytest

from sandherd_drivers.model_calls import ModelCalls


class RecordingSink:
    """Publishes events, and records all events of calls between them, in short form."""

    def __init__(self) -> None:
        self.time = 0.0
        self.calls = ModelCalls(now=lambda: self.time)
        self.emitted: list[tuple[str, dict[str, Any]]] = []

    def add(self, *types: str, **data: Any) -> "RecordingSink":
        for type in types:
            named = f"agent.{type}"
            fields = {"turn": 1, **data}
            self.emitted += [*self.calls.events_before(named), (named, fields), *self.calls.events_after(named, fields)]
        return self

    def words(self) -> list[str]:
        short = {"agent.model_call_started": "<", "agent.model_call_completed": ">"}
        return [short.get(type, type.removeprefix("agent.")) for type, _ in self.emitted]


@pytest.fixture
def recording_sink() -> RecordingSink:
    return RecordingSink()


def test_model_is_called_at_turn_start_and_after_tools(recording_sink: RecordingSink) -> None:
    """Each model reply is one call with a name, a turn and a time; no call is open while a tool runs."""
    recording_sink.add("turn_started", "user_message")
    recording_sink.time = 1.5
    recording_sink.add("thinking", "message").add("tool_use", tool_use_id="a").add("tool_use", tool_use_id="b")
    recording_sink.add("tool_completed", "tool_result", tool_use_id="a").add("tool_completed", tool_use_id="b")
    recording_sink.add("tool_result", tool_use_id="b").add("message", "assistant_message", "turn_completed")
    assert recording_sink.words() == [
        *("turn_started", "<", "user_message", ">", "thinking", "message", "tool_use", "tool_use"),
        *("tool_completed", "tool_result", "tool_completed", "<", "tool_result", ">", "message"),
        *("assistant_message", "turn_completed"),
    ]
    begun = [data for type, data in recording_sink.emitted if type == "agent.model_call_started"]
    over = [data for type, data in recording_sink.emitted if type == "agent.model_call_completed"]
    assert [call["call_id"] for call in begun] == [call["call_id"] for call in over]
    assert len({call["call_id"] for call in begun}) == 2
    assert (over[0]["duration_ms"], over[0]["turn"]) == (1500.0, 1)


@pytest.mark.parametrize("end", ["turn_completed", "stream_error", "error"])
def test_open_model_call_is_ended_with_its_turn(recording_sink: RecordingSink, end: str) -> None:
    """A stopped turn, a failed agent and an error of the model end the open call."""
    recording_sink.add("turn_started", end, "system_message")
    assert recording_sink.words() == ["turn_started", "<", ">", end, "system_message"]
    assert recording_sink.calls.end_call() == []


def test_no_model_call_is_open_between_turns(recording_sink: RecordingSink) -> None:
    """Messages between turns belong to the next turn; a late tool result belongs to the last one."""
    recording_sink.add("turn_started").add("tool_use", tool_use_id="a").add("turn_completed", "user_message")
    recording_sink.add("tool_result", tool_use_id="a").add("turn_started")
    assert recording_sink.words()[-4:] == ["user_message", "tool_result", "turn_started", "<"]


def test_calls_of_a_subagent_are_its_own(recording_sink: RecordingSink) -> None:
    """Tools and texts of a subagent start no call of the agent that waits for it."""
    recording_sink.add("turn_started").add("subagent_invoked", tool_use_id="s").add("thinking").add(
        "tool_use", tool_use_id="a"
    )
    recording_sink.add("tool_completed", "tool_result", tool_use_id="a").add("subagent_completed", tool_use_id="s")
    assert recording_sink.words()[4:] == [
        "thinking",
        "tool_use",
        "tool_completed",
        "tool_result",
        "subagent_completed",
        "<",
    ]
