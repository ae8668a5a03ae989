"""Model calls derived from an agent's events."""

from typing import Any

import pytest

from sandherd_drivers.model_calls import ModelCalls


class Teller:
    """Publishes events, and records all events of calls between them, in short."""

    def __init__(self) -> None:
        self.time = 0.0
        self.calls = ModelCalls(now=lambda: self.time)
        self.emitted: list[tuple[str, dict[str, Any]]] = []

    def say(self, *types: str, **data: Any) -> "Teller":
        for type in types:
            named = f"agent.{type}"
            fields = {"turn": 1, **data}
            self.emitted += [*self.calls.events_before(named), (named, fields), *self.calls.events_after(named, fields)]
        return self

    def words(self) -> list[str]:
        short = {"agent.model_call_started": "<", "agent.model_call_completed": ">"}
        return [short.get(type, type.removeprefix("agent.")) for type, _ in self.emitted]


@pytest.fixture
def teller() -> Teller:
    return Teller()


def test_model_is_called_at_turn_start_and_after_tools(teller: Teller) -> None:
    """Each model reply is one call with a name, a turn and a time; no call is open while a tool runs."""
    teller.say("turn_started", "user_message")
    teller.time = 1.5
    teller.say("thinking", "message").say("tool_use", tool_use_id="a").say("tool_use", tool_use_id="b")
    teller.say("tool_completed", "tool_result", tool_use_id="a").say("tool_completed", tool_use_id="b")
    teller.say("tool_result", tool_use_id="b").say("message", "assistant_message", "turn_completed")
    assert teller.words() == [
        *("turn_started", "<", "user_message", ">", "thinking", "message", "tool_use", "tool_use"),
        *("tool_completed", "tool_result", "tool_completed", "<", "tool_result", ">", "message"),
        *("assistant_message", "turn_completed"),
    ]
    begun = [data for type, data in teller.emitted if type == "agent.model_call_started"]
    over = [data for type, data in teller.emitted if type == "agent.model_call_completed"]
    assert [call["call_id"] for call in begun] == [call["call_id"] for call in over]
    assert len({call["call_id"] for call in begun}) == 2
    assert (over[0]["duration_ms"], over[0]["turn"]) == (1500.0, 1)


@pytest.mark.parametrize("end", ["turn_completed", "stream_error", "error"])
def test_open_model_call_is_ended_with_its_turn(teller: Teller, end: str) -> None:
    """A stopped turn, a failed agent and an error of the model end the open call."""
    teller.say("turn_started", end, "system_message")
    assert teller.words() == ["turn_started", "<", ">", end, "system_message"]
    assert teller.calls.end_call() == []


def test_no_model_call_is_open_between_turns(teller: Teller) -> None:
    """Messages between turns belong to the next turn; a late tool result belongs to the last one."""
    teller.say("turn_started").say("tool_use", tool_use_id="a").say("turn_completed", "user_message")
    teller.say("tool_result", tool_use_id="a").say("turn_started")
    assert teller.words()[-4:] == ["user_message", "tool_result", "turn_started", "<"]


def test_calls_of_a_subagent_are_its_own(teller: Teller) -> None:
    """Tools and texts of a subagent start no call of the agent that waits for it."""
    teller.say("turn_started").say("subagent_invoked", tool_use_id="s").say("thinking").say("tool_use", tool_use_id="a")
    teller.say("tool_completed", "tool_result", tool_use_id="a").say("subagent_completed", tool_use_id="s")
    assert teller.words()[4:] == ["thinking", "tool_use", "tool_completed", "tool_result", "subagent_completed", "<"]
