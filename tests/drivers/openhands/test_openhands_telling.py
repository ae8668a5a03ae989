"""A conversation's events in the worker's words, without the SDK."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.events import EVENTS
from sandherd_drivers.openhands.meter import Meter, Totals
from sandherd_drivers.openhands.outcomes import judge
from sandherd_drivers.openhands.telling import LONGEST_RESULT, Document, Said, Telling, printed


def telling() -> Telling:
    ticks = count()
    return Telling("a-model", lambda: float(next(ticks)))


def tell(telling: Telling, *events: Document) -> list[Said]:
    """What is said of them; each is an event that a worker would take."""
    said = [line for event in events for line in telling.tell(event)]
    for type, data in said:
        EVENTS[type].model_validate({"turn": 1, **data})
    return said


def action(call: str, tool: str = "terminal", **more: Any) -> Document:
    given = {"kind": "TerminalAction", "command": "ls", "timeout": None}
    return {
        "kind": "ActionEvent",
        "tool_name": tool,
        "tool_call_id": call,
        "action": given,
        "llm_response_id": "answer-1",
        **more,
    }


def result(call: str, shown: str = "a.txt", **observation: Any) -> Document:
    seen = {"kind": "TerminalObservation", "content": [{"type": "text", "text": shown}], "is_error": False}
    return {"kind": "ObservationEvent", "tool_call_id": call, "shown": shown, "observation": {**seen, **observation}}


def test_a_call_begins_and_ends() -> None:
    """With what it was given and has given; what was left out is not said."""
    said = tell(telling(), action("call-1"), result("call-1", exit_code=0))
    assert [type for type, _ in said] == [
        "agent.assistant_message",
        "agent.tool_use",
        "agent.tool_result",
        "agent.tool_completed",
    ]
    data = dict(said)
    assert data["agent.tool_use"]["input"] == {"command": "ls"}
    assert data["agent.tool_completed"]["tool_response"] == {"is_error": False, "exit_code": 0}
    assert data["agent.tool_completed"]["duration_ms"] == 1000


def test_calls_of_one_answer_are_one_answer() -> None:
    """The answer is said once, its words and thoughts before its calls; both calls are open until both have ended."""
    agent = telling()
    first = action("call-1", thought=[{"text": "I look."}], reasoning_content="Where?")
    said = tell(agent, first, action("call-2"))
    assert [type for type, _ in said] == [
        "agent.assistant_message",
        "agent.thinking",
        "agent.message",
        "agent.tool_use",
        "agent.tool_use",
    ]
    tell(agent, result("call-1"))
    assert agent.busy
    tell(agent, result("call-2"))
    assert not agent.busy


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "UserRejectObservation", "rejection_reason": "no"},
        {"kind": "AgentErrorEvent", "error": "no such tool"},
        {"kind": "ObservationEvent", "observation": {"is_error": True}},
    ],
    ids=lambda event: str(event["kind"]),
)
def test_a_call_that_fails_is_an_error(event: Document) -> None:
    """Whoever has said so; and it is over."""
    agent = telling()
    said = dict(tell(agent, action("call-1", action=None), {"tool_call_id": "call-1", "shown": "no", **event}))
    assert said["agent.tool_result"]["is_error"] is True
    assert said["agent.tool_use"]["input"] == {}
    assert not agent.busy


def test_words_in_the_shape_of_a_call_are_words() -> None:
    """To finish is to say something, to think is a thought; both are open until they are answered."""
    agent = telling()
    done = action("call-1", "finish", action={"kind": "FinishAction", "message": "Done."})
    thought = action("call-2", "think", action={"kind": "ThinkAction", "thought": "Hm."})
    said = tell(agent, thought, done)
    assert [type for type, _ in said] == ["agent.assistant_message", "agent.thinking", "agent.message"]
    assert agent.busy
    assert tell(agent, result("call-1"), result("call-2")) == []
    assert (agent.busy, agent.last_words) == (False, "Done.")


def test_who_speaks_is_told_apart() -> None:
    """The agent's words are its message; the SDK's own to the model are a note; ours were told by the worker."""
    mine = {"kind": "MessageEvent", "source": "agent", "shown": "Hello.", "llm_message": {"reasoning_content": "Hm."}}
    sdk = {"kind": "MessageEvent", "source": "environment", "shown": "You repeat yourself.", "sender": None}
    ours = {"kind": "MessageEvent", "source": "user", "shown": "Go on.", "sender": "user_message"}
    said = tell(telling(), mine, sdk, ours)
    assert [type for type, _ in said] == ["agent.thinking", "agent.message", "agent.system_message"]
    assert said[-1][1]["metadata"] == {"subtype": "note", "content": "You repeat yourself."}


def test_a_long_result_is_cut_and_says_so() -> None:
    """At the length that an event may have; the whole length is told."""
    data = dict(tell(telling(), action("call-1"), result("call-1", "x" * (LONGEST_RESULT + 1))))["agent.tool_result"]
    assert (len(data["result"]), data["result_truncated"]) == (LONGEST_RESULT, True)
    assert data["result_full_length"] == LONGEST_RESULT + 1


def test_what_is_no_ones_words_is_a_note() -> None:
    """The system prompt, that a part of the conversation was put into a summary, and that it was paused or stopped."""
    prompt = {"kind": "SystemPromptEvent", "system_prompt": {"text": "You are"}, "tools": [{"title": "terminal"}]}
    summary = {"kind": "Condensation", "forgotten_event_ids": ["a", "b"], "summary": "It was long."}
    bare = ("CondensationRequest", "PauseEvent", "InterruptEvent", "ConversationStateUpdateEvent")
    said = tell(telling(), prompt, summary, *({"kind": kind} for kind in bare))
    assert [data["metadata"] for _, data in said] == [
        {"subtype": "system_prompt", "tools": ["terminal"], "content_length": 7},
        {"subtype": "condensation", "forgotten": 2, "summary": "It was long."},
        {"subtype": "condensation_request"},
        {"subtype": "paused"},
        {"subtype": "interrupted"},
    ]


@pytest.mark.parametrize(
    ("event", "thoughts"),
    [
        ({"thinking_blocks": [{"thinking": "a"}, {"data": "hidden"}], "reasoning_content": "a"}, ["a"]),
        ({"reasoning_content": "b"}, ["b"]),
        ({"responses_reasoning_item": {"summary": ["c"], "content": ["d"]}}, ["c", "d"]),
        ({"responses_reasoning_item": {"summary": [], "content": None}}, []),
    ],
)
def test_a_thought_is_said_once(event: Document, thoughts: list[str]) -> None:
    """Wherever the model's provider puts it, and be it in two places."""
    said = tell(telling(), action("call-1", **event))
    assert [data["content"] for type, data in said if type == "agent.thinking"] == thoughts


def test_a_terminal_shows_commands_and_what_they_write() -> None:
    """Nothing else, for nothing else is a terminal's."""
    assert printed(result("call-1", "a.txt\n\n", command="ls")) == "$ ls\na.txt\n"
    assert printed({"kind": "MessageEvent"}) == ""


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10_000), st.integers(0, 5_000)), max_size=20))
def test_differences_add_up_to_what_was_used(steps: list[tuple[float, int, int]]) -> None:
    """Whatever the figures are: nothing is lost to rounding, nothing of what was before is charged."""
    total = Totals(1.0, 500, 50, 10, 20)
    meter = Meter(total)
    told: list[dict[str, Any]] = []
    for cost, prompt, output in steps:
        total = Totals(total.cost_usd + cost, total.prompt_tokens + prompt, total.output_tokens + output, 10, 20)
        told += _some(meter.difference(total))
    spent = {name: sum(difference[name] for difference in told) for name in total.counted()}
    began = Totals(1.0, 500, 50, 10, 20).counted()
    assert spent == {name: figure - began[name] for name, figure in total.counted().items()}


def _some(difference: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if difference is not None:
        yield difference


def test_nothing_used_is_nothing_to_tell() -> None:
    """A turn that was stopped before its model was asked has cost nothing."""
    assert Meter(Totals(1.0)).difference(Totals(1.0)) is None


@pytest.mark.parametrize(
    ("status", "fault", "error_type", "stop_reason"),
    [
        ("finished", None, None, "finished"),
        ("stuck", None, "exit_status", "stuck"),
        ("error", {"code": "MaxIterationsReached"}, "exit_status", "max_iterations"),
        ("error", {"code": "LLMRateLimitError", "classification": {"kind": "rate_limit"}}, "model_unavailable", None),
        ("error", {"code": "LLMTimeoutError", "classification": {"kind": "transient"}}, "model_unavailable", None),
        ("error", {"code": "LLMBadRequestError", "classification": {"kind": "config"}}, "model_refused", None),
        ("error", None, "exit_status", "error"),
    ],
)
def test_an_outcome_is_told_by_the_status_and_its_fault(
    status: str, fault: Document | None, error_type: str | None, stop_reason: str | None
) -> None:
    """What may be gone another time is tried again; all else is the agent's own failure."""
    outcome = judge(status, fault, stopped=False)
    assert (outcome.error_type, outcome.settled) == (error_type, True)
    assert outcome.stop_reason == (stop_reason or (fault or {})["code"])


@pytest.mark.parametrize("status", ["paused", "interrupted", "idle", "waiting_for_confirmation"])
def test_a_turn_that_was_stopped_is_no_outcome(status: str) -> None:
    """Whoever stopped it says what is next."""
    assert not judge(status, None, stopped=False).settled
    assert judge(status, None, stopped=True).stop_reason == "stopped"
