"""Calls of the model, by what an agent says."""

from typing import Any

import pytest

from sandherd_drivers.model_calls import ModelCalls


class Teller:
    """Says events, and keeps all that is said of calls between them, in short."""

    def __init__(self) -> None:
        self.time = 0.0
        self.calls = ModelCalls(now=lambda: self.time)
        self.said: list[tuple[str, dict[str, Any]]] = []

    def say(self, *types: str, **data: Any) -> "Teller":
        for type in types:
            named = f"agent.{type}"
            fields = {"turn": 1, **data}
            self.said += [*self.calls.before(named), (named, fields), *self.calls.after(named, fields)]
        return self

    def words(self) -> list[str]:
        short = {"agent.model_call_started": "<", "agent.model_call_completed": ">"}
        return [short.get(type, type.removeprefix("agent.")) for type, _ in self.said]


@pytest.fixture
def teller() -> Teller:
    return Teller()


def test_the_model_is_asked_at_the_beginning_and_after_its_tools(teller: Teller) -> None:
    """One call for each answer, and none while a tool runs; each has its name, its turn and its time."""
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
    begun = [data for type, data in teller.said if type == "agent.model_call_started"]
    over = [data for type, data in teller.said if type == "agent.model_call_completed"]
    assert [call["call_id"] for call in begun] == [call["call_id"] for call in over]
    assert len({call["call_id"] for call in begun}) == 2
    assert (over[0]["duration_ms"], over[0]["turn"]) == (1500.0, 1)


@pytest.mark.parametrize("end", ["turn_completed", "stream_error", "error"])
def test_no_call_is_left_in_flight(teller: Teller, end: str) -> None:
    """A turn that is stopped, an agent that breaks off and a model that answers with an error end it."""
    teller.say("turn_started", end, "system_message")
    assert teller.words() == ["turn_started", "<", ">", end, "system_message"]
    assert teller.calls.ended() == []


def test_between_turns_nobody_asks(teller: Teller) -> None:
    """What is told then is for the turn that comes of it; a tool that is told late was the last turn's."""
    teller.say("turn_started").say("tool_use", tool_use_id="a").say("turn_completed", "user_message")
    teller.say("tool_result", tool_use_id="a").say("turn_started")
    assert teller.words()[-4:] == ["user_message", "tool_result", "turn_started", "<"]


def test_a_sub_agents_own_calls_are_its_own(teller: Teller) -> None:
    """While it works, its tools and words begin no call of the agent that waits for it."""
    teller.say("turn_started").say("subagent_invoked", tool_use_id="s").say("thinking").say("tool_use", tool_use_id="a")
    teller.say("tool_completed", "tool_result", tool_use_id="a").say("subagent_completed", tool_use_id="s")
    assert teller.words()[4:] == ["thinking", "tool_use", "tool_completed", "tool_result", "subagent_completed", "<"]
